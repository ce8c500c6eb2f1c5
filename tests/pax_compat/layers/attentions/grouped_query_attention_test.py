"""Grouped-query attention against a loop in numpy.

Shapes: B batch, T target time, S source time, D model dims, N heads, K heads of
keys and values, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions import (
  attention_masks,
  grouped_query_attention,
)
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
)
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

B, T, D, N, H = 2, 5, 6, 4, 2


def _config(kv_heads, **fields):
  return grouped_query_attention.GroupedQueryAttention.config(
    input_dim=D, num_heads=N, num_kv_heads=kv_heads, dim_per_head=H, **fields
  )


@pytest.mark.parametrize('timescales', [None, (1, 10_000)])
@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_against_a_loop(kv_heads, timescales):
  config = _config(kv_heads, rope_min_max_timescales=timescales, atten_temp=0.5)
  weights = naive_attention.weights_of(config, D)
  assert set(weights) == {'query', 'key', 'value', 'post'}
  x = random(B, T, D, seed=30)
  mask = attention_masks.padding_mask(
    np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], np.float32)
  )
  y = config.Instantiate().apply(
    {PARAMS: weights}, x, x, x, atten_mask=AttentionMask(mask, causal=True)
  )[0]
  # A temperature of 1/2 is twice the query.
  query = {k: 2 * v for k, v in weights['query'].items()}
  want = naive_attention.layer(
    {**weights, 'query': query},
    *(x, x, x),
    mask=mask,
    causal=True,
    use_rotary_position_emb=timescales is not None,
  )
  np.testing.assert_allclose(y, want, rtol=2e-5, atol=5e-5)


def test_timescales_of_the_rotation():
  x = random(B, T, D, seed=30)

  def run(timescales, **fields):
    config = _config(2, rope_min_max_timescales=timescales, **fields)
    weights = naive_attention.weights_of(config, D)
    return config.Instantiate().apply({PARAMS: weights}, x, x, x)[0]

  assert np.abs(run((1, 10)) - run((1, 10_000))).max() < 1e-6  # H / 2 is 1.
  assert np.abs(run((2, 10)) - run((1, 10))).max() > 1e-3
  np.testing.assert_array_equal(
    run((1, 10_000)), run(None, use_rotary_position_emb=True)
  )


def test_heads_share_the_hidden_dim_where_theirs_are_not_given():
  config = _config(2).set(dim_per_head=None, hidden_dim=N * H)
  weights = naive_attention.weights_of(config, D)
  assert weights['key']['w'].shape == (D, 2, H)
  x = jnp.zeros((B, T, D))
  layer = _config(2).set(dim_per_head=None).Instantiate()
  with pytest.raises(errors.UserError, match='dim_per_head is required'):
    layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)


@pytest.mark.parametrize(
  ('kv_heads', 'dkh', 'of_keys'),
  [
    (1, None, ['x', None]),
    (1, ['y', None, 'x'], ['y', 'x']),
    (2, None, ['x', 'y', None]),
    (2, ['y', None, 'x'], ['y', None, 'x']),
  ],
)
def test_how_the_weights_are_split(kv_heads, dkh, of_keys):
  config = _config(kv_heads)
  config.weight_split_dims_mapping.set(dnh=['x', 'y', None], dkh=dkh)
  x = jnp.zeros((1, 1, D))
  layer = config.Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)
  for name, want in (
    ('query', ['x', 'y', None]),
    ('post', ['x', 'y', None]),
    ('key', of_keys),
    ('value', of_keys),
  ):
    box = variables[PARAMS][name]['w']
    assert box.meta.tensor_split_dims_mapping == want


@pytest.mark.parametrize(
  ('kv_heads', 'of_keys'),
  [(1, ('x', None, None, 'z')), (2, ('x', None, 'y', 'z'))],
)
def test_how_the_activations_are_split(kv_heads, of_keys):
  mesh = naive_attention.abstract_mesh(x=2, y=2, z=2)
  config = _config(kv_heads)
  config.activation_split_dims_mapping.set(
    btd=['x', None, 'y'],
    btnh=['x', None, 'y', None],
    bskh=['x', None, 'y', 'z'],
  )
  weights = naive_attention.weights_of(config, D)
  specs = naive_attention.splits(
    lambda x: config.Instantiate().apply({PARAMS: weights}, x, x, x)[0],
    mesh,
    jnp.zeros((B, T, D)),
  )
  specs = [spec for _, spec in specs]
  heads = ('x', None, 'y', None)
  want = [heads, heads, of_keys, of_keys, ('x', None, 'y')]
  assert sorted(specs, key=str) == sorted(want, key=str)
