"""Attention whose heads share keys and values, against a loop in numpy.

Shapes: B batch, T target time, S source time, D model dims, N heads, K heads of
keys and values, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions import (
  attention_masks,
  dot_product,
  multi_query_attention,
  relative_bias,
)
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
  AttentionMask,
)
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

B, T, D, N, H = 2, 5, 6, 4, 2
PADDINGS = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], np.float32)


def _config(kv_heads, **fields):
  return multi_query_attention.MultiQueryDotProductAttention.config(
    input_dim=D, hidden_dim=N * H, num_heads=N, num_kv_heads=kv_heads, **fields
  )


FIELDS = {
  'plain': {},
  'rotary': {'use_rotary_position_emb': True},
  'capped': {'atten_logit_cap': 2.0, 'attention_extra_logit': 0.5},
  'relative bias': {'relative_bias_tpl': relative_bias.RelativeBias.config()},
  'scaled by dim': {'internal_enable_per_dim_scale': True},
  'convolved': {'dconv_qkv': True},
}


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('kv_heads', [1, 2, 4])
@pytest.mark.parametrize('fields', FIELDS.values(), ids=FIELDS)
def test_against_a_loop(fields, kv_heads, causal):
  config = _config(kv_heads, **fields)
  weights = naive_attention.weights_of(config, D)
  w = (D, H) if kv_heads == 1 else (D, kv_heads, H)
  for name in ('key', 'value'):
    shapes = {k: v.shape for k, v in weights[name].items()}
    assert shapes == {'w': w, 'b': w[1:]}
  x = random(B, T, D, seed=30)
  mask = attention_masks.padding_mask(PADDINGS)
  y = config.Instantiate().apply(
    {PARAMS: weights}, x, x, x, atten_mask=AttentionMask(mask, causal=causal)
  )[0]
  want = naive_attention.layer(
    weights, x, x, x, mask=mask, causal=causal, **fields
  )
  np.testing.assert_allclose(y, want, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize('kv_heads', [1, 2])
def test_sources_of_another_length_and_other_dims(kv_heads):
  dims = {'query': D, 'key': 3, 'value': 4}
  config = _config(kv_heads).set(input_dim=dims)
  inputs = [
    random(B, length, dims[name], seed=i)
    for i, (name, length) in enumerate((('query', 2), ('key', 7), ('value', 7)))
  ]
  layer = config.Instantiate()
  (y, _), variables = layer.init_with_output(
    {PARAMS: jax.random.key(0)}, *inputs
  )
  weights = jax.tree.map(np.asarray, base_layer.unbox(variables)[PARAMS])
  want = naive_attention.layer(weights, *inputs)
  np.testing.assert_allclose(y, want, rtol=2e-5, atol=5e-5)


def test_one_head_has_gradients_from_all():
  """Against heads of their own with the same weights, whose gradients sum."""
  # Without biases, because that of the keys has a gradient of zero.
  config = _config(1, use_bias=False)
  shared, weights = config.Instantiate(), naive_attention.weights_of(config, D)
  apart = dot_product.DotProductAttention.config(
    input_dim=D,
    hidden_dim=N * H,
    num_heads=N,
    use_bias=False,
    internal_enable_per_dim_scale=False,
  ).Instantiate()
  x = random(B, T, D, seed=30)

  def loss(layer, repeated, weights):
    if repeated:
      weights = {
        **weights,
        **{
          name: jax.tree.map(
            lambda w: jnp.repeat(w[:, None], N, axis=1), weights[name]
          )
          for name in ('key', 'value')
        },
      }
    y = layer.apply({PARAMS: weights}, x, x, x, atten_mask=CAUSAL)[0]
    return jnp.sum(y**2)

  got = jax.jit(jax.grad(lambda w: loss(shared, False, w)))(weights)
  want = jax.jit(jax.grad(lambda w: loss(apart, True, w)))(weights)
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4),
    *(got, want),
  )


def _mappings(config):
  x = jnp.zeros((1, 1, D))
  layer = config.Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)
  return {
    name: variables[PARAMS][name]['w'].meta.tensor_split_dims_mapping
    for name in ('query', 'key', 'value', 'post')
  }


def test_how_the_weights_are_split():
  config = _config(1)
  config.weight_split_dims_mapping.set(
    proj=['x', 'y', None], proj_headless=['x', None]
  )
  of_heads, of_one = ['x', 'y', None], ['x', None]
  assert _mappings(config) == {
    **{'query': of_heads, 'key': of_one, 'value': of_one, 'post': of_heads}
  }
  config = _config(2)
  config.weight_split_dims_mapping.proj = ['x', 'y', None]
  assert set(map(tuple, _mappings(config).values())) == {('x', 'y', None)}


@pytest.mark.parametrize(
  ('kv_heads', 'blh', 'of_keys'),
  [
    (1, None, ('x', None, None, 'z')),
    (1, ['x', None, 'y'], ('x', None, None, 'y')),
    (2, None, ('x', None, 'y', 'z')),
  ],
)
def test_how_the_activations_are_split(kv_heads, blh, of_keys):
  mesh = naive_attention.abstract_mesh(x=2, y=2, z=2)
  config = _config(kv_heads)
  config.activation_split_dims_mapping.set(blnh=['x', None, 'y', 'z'], blh=blh)
  weights = naive_attention.weights_of(config, D)
  specs = naive_attention.splits(
    lambda x: config.Instantiate().apply({PARAMS: weights}, x, x, x)[0],
    mesh,
    jnp.zeros((B, T, D)),
  )
  specs = [spec for _, spec in specs]
  heads = ('x', None, 'y', 'z')
  assert sorted(specs, key=str) == sorted(
    [heads, heads, of_keys, of_keys], key=str
  )


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'num_kv_heads': 3}, 'num_kv_heads is 3; expected a divisor of num_heads'),
    ({'combine_qkv': True}, 'combine_qkv: .*number of heads'),
  ],
)
def test_settings_that_do_not_go_together(fields, message):
  x = jnp.zeros((B, T, D))
  layer = _config(1).set(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)
