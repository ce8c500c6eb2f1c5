"""Attention by distance against numpy, and step by step.

Shapes: B batch, T time, D model dims, N heads, R dims of the distances'
embeddings.
"""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
  AttentionMask,
)
from pax_compat.layers.attentions.relative_attentions import (
  DotProductAttentionRPE,
  DotProductAttentionXL,
)
from tests.pax_compat.layers import distance_attention, naive_attention
from tests.pax_compat.layers.naive_attention import random, weights_of
from tests.pax_compat.layers.step_by_step import decode

B, T, D, N, R = 2, 7, 6, 2, 4
X = random(B, T, D)
PADDINGS = (np.arange(T) >= np.array([[T], [4]])).astype(np.float32)


def _config(**fields):
  return DotProductAttentionXL.config(
    input_dim=D,
    hidden_dim=6,
    num_heads=N,
    rel_pos_emb_dim=R,
    internal_enable_per_dim_scale=False,
    **fields,
  )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'skip_term_b': True},
    {'use_bias': False},
    {'use_bias': False, 'use_relative_bias': True},
  ],
)
@pytest.mark.parametrize('causal', [False, True])
def test_attention_by_distance(fields, causal):
  config = _config(**fields)
  weights = weights_of(config, D)
  assert ('u' in weights) == (fields != {'use_bias': False})
  mask = attention_masks.padding_mask(PADDINGS)
  y = config.Instantiate().apply(
    {PARAMS: weights}, X, X, X, atten_mask=AttentionMask(mask, causal=causal)
  )[0]
  visible = np.asarray(mask)
  if causal:
    visible = visible & attention_masks.causal_mask(T)
  want = distance_attention.layer(
    weights, X, visible, dims=R, skip_term_b=fields.get('skip_term_b')
  )
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def _learned(**fields):
  return DotProductAttentionRPE.config(
    input_dim=D,
    hidden_dim=6,
    num_heads=N,
    rel_pos_radius=2,
    internal_enable_per_dim_scale=False,
    **fields,
  )


def _learned_in_numpy(weights, visible):
  """Returns what attention with learned distances computes, [B, T, D]."""
  query, key, value = (
    naive_attention.project(weights[name], X.astype(np.float64))
    for name in ('query', 'key', 'value')
  )
  query = query * query.shape[-1] ** -0.5

  def vectors(name):
    table = weights[f'{name}_emb']['w'].astype(np.float64)
    if f'{name}_pos_proj' in weights:
      projection = weights[f'{name}_pos_proj']['w']
      return np.einsum('lr,rnh->lnh', table, projection)
    return table.reshape(5, N, -1)

  encoded = np.zeros(query.shape)
  for b, n, t in np.ndindex(B, N, T):
    logits = np.full(T, -np.inf)
    for s in np.flatnonzero(visible[b, 0, t]):
      before = vectors('key')[np.clip(t - s, -2, 2) + 2, n]
      logits[s] = query[b, t, n] @ (key[b, s, n] + before)
    shares = np.exp(logits - logits.max())
    for s, share in enumerate(shares / shares.sum()):
      added = value[b, s, n]
      if 'value_emb' in weights:
        added = added + vectors('value')[np.clip(s - t, -2, 2) + 2, n]
      encoded[b, t, n] += share * added
  post = weights['post']
  return np.einsum('btnh,dnh->btd', encoded, post['w']) + post['b']


@pytest.mark.parametrize(
  'fields', [{}, {'rel_pos_emb_dim': 4}, {'skip_value_emb': True}]
)
def test_learned_distances(fields):
  config = _learned(**fields)
  weights = weights_of(config, D)
  mask = attention_masks.padding_mask(PADDINGS)
  y = config.Instantiate().apply(
    {PARAMS: weights}, X, X, X, atten_mask=AttentionMask(mask, causal=True)
  )[0]
  visible = np.asarray(mask & attention_masks.causal_mask(T))
  want = _learned_in_numpy(weights, visible)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('config', [_config(), _learned()], ids=['xl', 'rpe'])
@pytest.mark.parametrize('sizes', [[1] * T, [3, 1, 3]])
def test_step_by_step(sizes, config):
  weights = weights_of(config, D)
  layer = config.Instantiate()
  whole = layer.apply({PARAMS: weights}, X, X, X, atten_mask=CAUSAL)[0]
  pieces = decode(layer, weights, X, sizes, B, T)
  np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-5)


def test_packed_examples_are_as_they_are_alone():
  """Distances within an example do not depend on where it stands."""
  config = _config()
  weights = weights_of(config, D)
  layer = config.Instantiate()
  segments = np.array([[1, 1, 1, 2, 2, 2, 2]] * B)
  mask = attention_masks.segment_mask(segments)
  packed = layer.apply({PARAMS: weights}, X, X, X, atten_mask=mask)[0]
  alone = X[:, 3:]
  alone = layer.apply({PARAMS: weights}, alone, alone, alone)[0]
  np.testing.assert_allclose(packed[:, 3:], alone, rtol=1e-4, atol=1e-5)


def test_relative_biases_start_at_zero():
  variables = _config().Instantiate().init_boxed(jax.random.key(0), X, X, X)
  for name in ('u', 'v'):
    assert not np.any(variables[PARAMS][name].unbox())


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'rel_pos_emb_dim': 0}, 'rel_pos_emb_dim is 0'),
    ({'skip_term_b': True, 'use_bias': False}, 'use_relative_bias is off'),
    ({'rel_pos_radius': 0}, 'radius is 0'),
  ],
)
def test_refuses(fields, message):
  config = _learned() if 'rel_pos_radius' in fields else _config()
  layer = config.set(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), X, X, X)


def test_refuses_another_sequence():
  config = _config()
  layer, weights = config.Instantiate(), weights_of(config, D)
  source = X[:, :3]
  with pytest.raises(errors.UserError, match='not support cross'):
    layer.apply({PARAMS: weights}, X, source, source)[0]
  with pytest.raises(errors.UserError, match='not support cross'):
    layer.apply({PARAMS: weights}, X, method='init_cross_states', mutable=True)
