"""Attention with parts left out against numpy, and step by step.

Shapes: B batch, T time, S source time, D model dims, N heads, H dims of a head.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
  AttentionMask,
)
from pax_compat.layers.attentions.flexible_attention import FlexibleAttention
from tests.pax_compat.layers.naive_attention import random
from tests.pax_compat.layers.step_by_step import decode

B, T, S, N, H = 2, 6, 5, 2, 3
D = N * H

NAMES = ('query', 'key', 'value')


def _layer(**fields):
  return FlexibleAttention.config(
    **{
      'input_dim': D,
      'hidden_dim': D,
      'num_heads': N,
      'internal_enable_per_dim_scale': False,
      **fields,
    }
  ).Instantiate()


def _weights(layer, sizes):
  """Returns random weights for a layer whose inputs have these dims."""
  x = [np.zeros([1, 2, size], np.float32) for size in sizes]
  shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), *x))
  leaves, tree = jax.tree.flatten(base_layer.unbox(shapes).get(PARAMS, {}))
  return tree.unflatten(random(*x.shape, seed=i) for i, x in enumerate(leaves))


def _expected(layer, weights, inputs, visible):
  """Returns the result in numpy.

  Args:
    layer: the layer.
    weights: of it.
    inputs: queries, keys and values.
    visible: [T, S], which target sees which source.
  """

  def heads(name, x):
    if name in weights:
      return (
        np.einsum('btd,dnh->btnh', x, weights[name]['w']) + (weights[name]['b'])
      )
    return x.reshape([*x.shape[:2], N, H])

  query, key = map(heads, NAMES[:2], inputs[:2])
  value = key if layer.value_from_key else heads('value', inputs[2])
  logits = np.einsum('btnh,bsnh->bnts', query, key) / H**0.5
  logits = np.where(visible, logits, -np.inf)
  probs = np.exp(logits - logits.max(-1, keepdims=True))
  probs /= probs.sum(-1, keepdims=True)
  y = np.einsum('bnts,bsnh->btnh', probs, value)
  if 'post' in weights:
    y = np.einsum('btnh,dnh->btd', y, weights['post']['w'])
    return y + weights['post']['b']
  return y.reshape([*y.shape[:2], D])


def _check(layer, sizes=(D, D, D), sources=S, visible=True, **given):
  weights = _weights(layer, sizes)
  lengths = (T, sources, sources)
  x = [random(B, t, d, seed=9 + d) for t, d in zip(lengths, sizes, strict=True)]
  y = layer.apply({PARAMS: weights}, *x, **given)[0]
  np.testing.assert_allclose(
    y, _expected(layer, weights, x, visible), rtol=1e-4, atol=1e-5
  )
  return weights


@pytest.mark.parametrize(
  ('fields', 'sizes', 'has'),
  [
    ({}, (D, D, D), {'query', 'key', 'value', 'post'}),
    ({'project_query': False}, (D, D, D), {'key', 'value', 'post'}),
    ({'project_key': False}, (D, D, D), {'query', 'value', 'post'}),
    ({'project_value': False}, (D, D, D), {'query', 'key', 'post'}),
    ({'project_output': False}, (4, 5, 7), {'query', 'key', 'value'}),
    ({'value_from_key': True}, (4, 5, 5), {'query', 'key', 'post'}),
    ({'output_dim': 3}, (4, 5, 7), {'query', 'key', 'value', 'post'}),
    (
      {f'project_{name}': False for name in (*NAMES, 'output')},
      (D, D, D),
      set(),
    ),
  ],
)
def test_what_is_projected(fields, sizes, has):
  input_dim = dict(zip(NAMES, sizes, strict=True))
  weights = _check(_layer(input_dim=input_dim, **fields), sizes)
  assert set(weights) == has


def test_templates_of_single_projections():
  layer = _layer()
  no_bias = layer.proj_tpl.clone().set(use_bias=False)
  tpls = {'key_proj_tpl': no_bias, 'value_proj_tpl': no_bias.clone()}
  layer = _layer(use_bias=True, **tpls)
  with pytest.raises(errors.UserError, match='key_proj_tpl.use_bias'):
    _weights(layer, (D, D, D))
  starts = [base_layer.WeightInit.Constant(value) for value in (1.0, 2.0, 3.0)]
  tpls = {
    name: layer.proj_tpl.clone().set(params_init=start)
    for name, start in zip(
      ('proj_tpl', 'key_proj_tpl', 'value_proj_tpl'), starts, strict=True
    )
  }
  x = random(1, 2, D)
  weights = _layer(**tpls).init(jax.random.key(0), x, x, x)
  weights = base_layer.unbox(weights)[PARAMS]
  for name, start in zip(NAMES, starts, strict=True):
    np.testing.assert_array_equal(weights[name]['w'], start.scale)


def _distance():
  return np.arange(T)[:, None] - np.arange(T)


@pytest.mark.parametrize(
  ('fields', 'causal', 'visible'),
  [
    ({'left_context': 1}, True, _distance() == 0),
    ({'left_context': 3}, True, (_distance() >= 0) & (_distance() < 3)),
    ({'left_context': 3}, False, _distance() < 3),
    ({'left_context': 99}, True, _distance() >= 0),
    ({'sees_itself': False}, False, _distance() != 0),
  ],
)
def test_what_is_seen(fields, causal, visible):
  given = dict(atten_mask=AttentionMask(causal=causal))
  _check(_layer(**fields), sources=T, visible=visible, **given)
  # A mask hides more.
  mask = np.ones([1, 1, 1, T], bool)
  mask[..., 2] = False
  keep = [t for t in range(T) if (visible & mask[0, 0])[t].any()]
  layer = _layer(**fields)
  weights = _weights(layer, (D, D, D))
  x = random(B, T, D)
  y = layer.apply(
    {PARAMS: weights}, x, x, x, atten_mask=AttentionMask(mask, causal=causal)
  )[0]
  with np.errstate(invalid='ignore'):
    want = _expected(layer, weights, [x] * 3, visible & mask[0, 0])
  np.testing.assert_allclose(y[:, keep], want[:, keep], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  'fields', [{'left_context': 2}, {'value_from_key': True}]
)
def test_steps_are_the_whole(fields):
  layer = _layer(**fields)
  weights = _weights(layer, (D, D, D))
  x = random(B, T, D)
  whole = layer.apply({PARAMS: weights}, x, x, x, atten_mask=CAUSAL)[0]
  steps = decode(layer, weights, x, [3, 1, 2], B, T)
  np.testing.assert_allclose(steps, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'left_context': 0}, 'left_context is 0'),
    ({'combine_qkv': True}, 'combine_qkv is not supported'),
    ({'project_key': False, 'hidden_dim': 2 * D}, 'project_key is False'),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _weights(_layer(**fields), (D, D, D))
