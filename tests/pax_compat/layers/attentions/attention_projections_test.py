"""Projections against products in numpy.

Shapes: B batch, T time, D model dims, N heads, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS, WeightInit
from pax_compat.layers.attentions import attention_projections, dot_product
from tests.pax_compat.layers.naive_attention import random

B, T, D, N, H = 2, 3, 6, 2, 4


def _weights(config, x):
  layer = config.Instantiate()
  return jax.eval_shape(layer.init_boxed, {PARAMS: jax.random.key(0)}, x)[
    PARAMS
  ]


def _mappings(weights):
  return {
    name: box.meta.tensor_split_dims_mapping for name, box in weights.items()
  }


def _projection(**fields):
  return attention_projections.AttentionProjection.config(
    input_dim=D, num_heads=N, dim_per_head=H, **fields
  )


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('combine', [False, True])
def test_into_heads(combine, use_bias):
  config = _projection(attention_combine_dims=combine, use_bias=use_bias)
  w, b, x = random(D, N, H), random(N, H, seed=1), random(B, T, D, seed=2)
  stored = {'w': w.reshape(D, N * H) if combine else w}
  if use_bias:
    stored['b'] = b
  y = config.Instantiate().apply({PARAMS: stored}, x)
  want = np.stack([x @ w[:, n] for n in range(N)], axis=2) + b * use_bias
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
  assert set(_weights(config, x)) == set(stored)


@pytest.mark.parametrize('nhd', [False, True])
@pytest.mark.parametrize('combine', [False, True])
def test_out_of_heads(combine, nhd):
  config = _projection(
    is_output_projection=True, attention_combine_dims=combine, use_nhd_shape=nhd
  )
  w, b, x = random(D, N, H), random(D, seed=1), random(B, T, N, H, seed=2)
  stored = np.moveaxis(w, 0, -1) if nhd else w
  if combine:
    stored = stored.reshape((N * H, D) if nhd else (D, N * H))
  y = config.Instantiate().apply({PARAMS: {'w': stored, 'b': b}}, x)
  want = sum(x[:, :, n] @ w[:, n].T for n in range(N)) + b
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
  shapes = {k: box.value.shape for k, box in _weights(config, x).items()}
  assert shapes == {'w': stored.shape, 'b': (D,)}


def test_the_order_of_dims_is_for_the_output_only():
  x = random(B, T, D)
  weights = _weights(_projection(use_nhd_shape=True), x)
  assert weights['w'].value.shape == (D, N, H)


@pytest.mark.parametrize('use_bias', [False, True])
def test_into_one_head(use_bias):
  config = attention_projections.OneHeadedAttentionProjection.config(
    input_dim=D, output_dim=H, use_bias=use_bias
  )
  weights = {'w': random(D, H), 'b': random(H, seed=1)}
  if not use_bias:
    del weights['b']
  x = random(B, T, D, seed=2)
  y = config.Instantiate().apply({PARAMS: weights}, x)
  want = x @ weights['w'] + (weights['b'] if use_bias else 0)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
  assert set(_weights(config, x)) == set(weights)


@pytest.mark.parametrize('combine', [False, True])
@pytest.mark.parametrize('use_bias', [False, True])
def test_all_three_in_one_equal_three_alone(use_bias, combine):
  config = attention_projections.CombinedQKVProjectionLayer.config(
    input_dim=D,
    num_heads=N,
    dim_per_head=H,
    use_bias=use_bias,
    attention_combine_dims=combine,
  )
  w, b = random(3, D, N, H), random(3, N, H, seed=1)
  x = random(B, T, D, seed=2)
  stored = {'w': w.reshape(3, D, N * H) if combine else w}
  if use_bias:
    stored['b'] = b.reshape(3, N * H) if combine else b
  heads = config.Instantiate().apply({PARAMS: stored}, x)
  alone = _projection(use_bias=use_bias).Instantiate()
  for i, got in enumerate(heads):
    weights = {'w': w[i], 'b': b[i]} if use_bias else {'w': w[i]}
    np.testing.assert_allclose(
      got, alone.apply({PARAMS: weights}, x), rtol=1e-5, atol=1e-5
    )
  shapes = {k: box.value.shape for k, box in _weights(config, x).items()}
  assert shapes == {k: v.shape for k, v in stored.items()}


@pytest.mark.parametrize(
  ('fields', 'wt', 'want'),
  [
    ({}, ['x', 'y', 'z'], {'w': ['x', 'y', 'z'], 'b': ['y', 'z']}),
    (
      {'is_output_projection': True},
      ['x', 'y', None],
      {'w': ['x', 'y', None], 'b': ['x']},
    ),
    (
      {'is_output_projection': True, 'use_nhd_shape': True},
      ['y', None, 'x'],
      {'w': ['y', None, 'x'], 'b': ['x']},
    ),
    (
      {'attention_combine_dims': True},
      ['x', ('y', 'z'), None],
      {'w': ['x', ('y', 'z')], 'b': [('y', 'z'), None]},
    ),
    (
      {'attention_combine_dims': True},
      ['x', 'y', 'z'],
      {'w': ['x', ('y', 'z')], 'b': ['y', 'z']},
    ),
    (
      {'attention_combine_dims': True},
      ['x', -1, None],
      {'w': ['x', None], 'b': [-1, None]},
    ),
    (
      {
        'is_output_projection': True,
        'use_nhd_shape': True,
        'attention_combine_dims': True,
      },
      ['y', 'z', 'x'],
      {'w': [('y', 'z'), 'x'], 'b': ['x']},
    ),
    ({}, None, {'w': None, 'b': None}),
  ],
)
def test_how_a_projection_is_split(fields, wt, want):
  config = _projection(**fields)
  config.weight_split_dims_mapping.wt = wt
  shape = (B, T, N, H) if config.is_output_projection else (B, T, D)
  weights = _weights(config, jnp.zeros(shape))
  assert _mappings(weights) == want


@pytest.mark.parametrize(
  ('combine', 'w', 'b'),
  [
    (False, [None, 'x', 'y', 'z'], [None, 'y', 'z']),
    (True, [None, 'x', ('y', 'z')], [None, ('y', 'z')]),
  ],
)
def test_how_all_three_are_split(combine, w, b):
  config = attention_projections.CombinedQKVProjectionLayer.config(
    input_dim=D, num_heads=N, dim_per_head=H, attention_combine_dims=combine
  )
  config.weight_split_dims_mapping.wt = ['x', 'y', 'z']
  weights = _weights(config, jnp.zeros((B, T, D)))
  assert _mappings(weights) == {'w': w, 'b': b}


def test_how_one_head_is_split():
  config = attention_projections.OneHeadedAttentionProjection.config(
    input_dim=D, output_dim=H
  )
  config.weight_split_dims_mapping.wt = ['x', 'y']
  weights = _weights(config, jnp.zeros((B, T, D)))
  assert _mappings(weights) == {'w': ['x', 'y'], 'b': ['y']}


def test_a_mapping_has_an_entry_for_each_dimension():
  config = _projection()
  config.weight_split_dims_mapping.wt = ['x', 'y']
  with pytest.raises(errors.UserError, match=r"\['x', 'y'\]; expected one"):
    _weights(config, jnp.zeros((B, T, D)))


@pytest.mark.parametrize(('explicit', 'fan_in'), [(False, 64 * 4), (True, 64)])
def test_where_a_weight_starts(explicit, fan_in):
  config = attention_projections.AttentionProjection.config(
    input_dim=64,
    num_heads=4,
    dim_per_head=32,
    explicit_fan_in_fan_out_axes=explicit,
    params_init=WeightInit.GaussianSqrtFanIn(1.0),
  )
  weights = config.Instantiate().init_boxed(
    {PARAMS: jax.random.key(0)}, jnp.zeros((1, 1, 64))
  )
  deviation = np.std(weights[PARAMS]['w'].value)
  # Of 8192 draws, to within 1% mostly.
  np.testing.assert_allclose(deviation, fan_in**-0.5, rtol=0.05)


def test_projections_compute_in_their_own_dtype():
  config = _projection(fprop_dtype=jnp.bfloat16)
  x = random(B, T, D)
  y, _ = config.Instantiate().init_with_output({PARAMS: jax.random.key(0)}, x)
  assert y.dtype == jnp.bfloat16


def test_queries_start_scaled_by_the_root_of_the_dims():
  layer = attention_projections.PerDimScale.config(dim=16).Instantiate()
  x = random(2, 16)
  y, _ = layer.init_with_output({PARAMS: jax.random.key(0)}, x)
  np.testing.assert_allclose(y, x / 4, rtol=1e-6)


def test_each_dim_has_its_scale():
  layer = attention_projections.PerDimScale.config(dim=3).Instantiate()
  weight = np.array([-1.0, 0.5, 2.0], np.float32)
  x = random(2, 3)
  y = layer.apply({PARAMS: {'per_dim_scale': weight}}, x)
  factor = np.log1p(np.exp(weight)) / np.log(2) / np.sqrt(3)
  np.testing.assert_allclose(y, x * factor, rtol=1e-5)


def test_the_output_projection_may_have_all_fields_set():
  config = dot_product.DotProductAttention.config(
    input_dim=D, hidden_dim=N * H, num_heads=N, output_proj_use_nhd_shape=True
  )
  config.proj_tpl.set(is_output_projection=False, use_nhd_shape=False)
  layer = config.Instantiate()
  x = random(B, T, D)
  params = layer.init({PARAMS: jax.random.key(0)}, x, x, x)[PARAMS]
  assert params['post']['w'].shape == (N, H, D)
