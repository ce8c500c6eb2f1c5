"""Normalisations other than that of batches against their formulas.

Shapes: B batch, T time, H height, W width, D features.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers.normalizations import norm_layers

DIM = 6


def _layer(**fields):
  return norm_layers.LayerNorm.config(dim=DIM, **fields).Instantiate()


def _first_weights(layer, x):
  variables = layer.init_boxed({base_layer.PARAMS: jax.random.key(0)}, x)
  return variables.get(base_layer.PARAMS, {})


def _normalised(x, epsilon=1e-6):
  variance = x.var(-1, keepdims=True)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + epsilon)


@pytest.fixture
def x():
  return np.random.default_rng(0).normal(5, 3, (4, DIM)).astype(np.float32)


@pytest.mark.parametrize('direct_scale', [True, False])
def test_starts_as_plain_normalisation(x, direct_scale):
  layer = _layer(direct_scale=direct_scale)
  y = layer.apply({base_layer.PARAMS: _first_weights(layer, x)}, x)
  np.testing.assert_allclose(y, _normalised(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('direct_scale', [True, False])
def test_scale_and_bias(x, direct_scale):
  scale = np.linspace(-1, 2, DIM, dtype=np.float32)
  bias = np.linspace(3, 4, DIM, dtype=np.float32)
  layer = _layer(direct_scale=direct_scale, epsilon=0.5)
  y = layer.apply({base_layer.PARAMS: {'scale': scale, 'bias': bias}}, x)
  factor = scale if direct_scale else 1 + scale
  want = _normalised(x, 0.5) * factor + bias
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_weights_are_optional_and_never_regularised(x):
  assert set(_first_weights(_layer(use_bias=False), x)) == {'scale'}
  assert not _first_weights(_layer(use_bias=False, use_scale=False), x)
  for box in _first_weights(_layer(), x).values():
    assert base_layer.SKIP_LP_REGULARIZATION in box.meta.collections


def test_statistics_are_in_single_precision(x):
  # In bfloat16, which has 8 bits, the mean would swallow the differences.
  shifted = jnp.asarray([[256, 258, 260, 262, 264, 266]], jnp.bfloat16)
  layer = _layer(fprop_dtype=jnp.bfloat16, use_scale=False, use_bias=False)
  y = layer.apply({}, shifted)
  assert y.dtype == jnp.bfloat16
  want = _normalised(np.arange(6.0)[None] * 2)
  np.testing.assert_allclose(y.astype(jnp.float32), want, atol=0.01)


def test_statistics_in_the_dtype_of_the_inputs_if_told_so():
  shifted = jnp.asarray([[256, 258, 260, 262, 264, 266]], jnp.bfloat16)
  layer = _layer(use_scale=False, use_bias=False, reductions_in_fp32=False)
  x = shifted - jnp.mean(shifted)
  want = x * jax.lax.rsqrt(jnp.mean(x * x) + jnp.bfloat16(1e-6))
  y = layer.apply({}, shifted)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize('direct_scale', [True, False])
def test_rms_norm(x, direct_scale):
  config = norm_layers.RmsNorm.config(
    dim=DIM, direct_scale=direct_scale, epsilon=0.5
  )
  layer = config.Instantiate()
  (first,) = _first_weights(layer, x).values()
  assert (first.value == (1.0 if direct_scale else 0.0)).all()
  scale = np.linspace(-1, 2, DIM, dtype=np.float32)
  y = layer.apply({base_layer.PARAMS: {'scale': scale}}, x)
  want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5)
  want = want * (scale if direct_scale else 1 + scale)
  np.testing.assert_allclose(y, want, rtol=1e-5)


def test_rms_norm_without_scale(x):
  layer = norm_layers.RmsNormNoScale.config(dim=DIM).Instantiate()
  want = x / np.sqrt((x**2).mean(-1, keepdims=True))
  np.testing.assert_allclose(layer.apply({}, x), want, rtol=1e-5)


@pytest.mark.parametrize('dtype', [jnp.float32, None])
def test_rms_norm_computes_in_its_intermediate_dtype(dtype):
  x = jnp.asarray(np.linspace(1, 2, 1000)[None], jnp.bfloat16)
  config = norm_layers.RmsNorm.config(
    dim=1000, fprop_dtype=jnp.bfloat16, intermediate_dtype=dtype
  )
  layer = config.Instantiate()
  y = layer.apply({base_layer.PARAMS: {'scale': jnp.ones(1000)}}, x)
  assert y.dtype == jnp.bfloat16
  exact = np.asarray(x, np.float64)
  exact /= np.sqrt((exact**2).mean())
  error = np.abs(np.asarray(y, np.float64) / exact - 1).max()
  # The result itself has 8 bits; in 8 bits, more than the last of them is lost.
  assert (error < 2**-8) == (dtype is not None)


def test_primer_norm(x):
  layer = norm_layers.PrimerNorm.config(dim=DIM, epsilon=0.5).Instantiate()
  first = _first_weights(layer, x)
  assert (first['scale'].value == 1).all() and (first['bias'].value == 0).all()
  scale = np.linspace(-1, 2, DIM, dtype=np.float32)
  bias = np.linspace(3, 1, DIM, dtype=np.float32)
  y = layer.apply({base_layer.PARAMS: {'scale': scale, 'bias': bias}}, x)
  deviation = np.sqrt(x.var(-1, keepdims=True) + 0.5)
  np.testing.assert_allclose(y, x / deviation * scale + bias, rtol=1e-5)


@pytest.mark.parametrize('name', ['LayerNorm', 'RmsNorm', 'RmsNormNoScale'])
def test_paddings_make_no_difference_to_positions(x, name):
  layer = getattr(norm_layers, name).config(dim=DIM).Instantiate()
  variables = layer.init_boxed({base_layer.PARAMS: jax.random.key(0)}, x)
  padded = layer.apply(variables, x, jnp.ones(4))
  np.testing.assert_array_equal(padded, layer.apply(variables, x))


def test_identity(x):
  layer = norm_layers.IdentityNorm.config().Instantiate()
  np.testing.assert_array_equal(layer.apply({}, x, jnp.ones(4)), x)


def _grouped(x, groups, valid=None, epsilon=0.001):
  """Normalises x [B, ..., D] group by group, example by example."""
  y = np.zeros(x.shape)
  valid = np.ones(x.shape[:2], bool) if valid is None else valid
  for b, features in np.ndindex(x.shape[0], groups):
    part = slice(features * x.shape[-1] // groups, None)
    part = slice(part.start, part.start + x.shape[-1] // groups)
    seen = x[b, valid[b]][..., part].astype(np.float64)
    y[b, ..., part] = (x[b][..., part] - seen.mean()) / np.sqrt(
      seen.var() + epsilon
    )
  return np.where(valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), y, 0)


def _group_norm(shape, **fields):
  """Returns a layer, its inputs and weights with which it does something."""
  rng = np.random.default_rng(1)
  x = rng.normal(2, 3, shape).astype(np.float32)
  config = norm_layers.GroupNorm.config(
    dim=shape[-1], input_rank=len(shape), **fields
  )
  layer = config.Instantiate()
  variables = layer.init_boxed({base_layer.PARAMS: jax.random.key(0)}, x)
  weights = {
    name: rng.normal(size=box.value.shape).astype(np.float32)
    for name, box in variables.get(base_layer.PARAMS, {}).items()
  }
  return layer, x, {base_layer.PARAMS: weights}


@pytest.mark.parametrize('shape', [(2, 5, 6), (2, 5, 4, 6), (2, 3, 4, 2, 6)])
@pytest.mark.parametrize(
  ('fields', 'groups'),
  [
    ({'num_groups': 2}, 2),
    ({'num_groups': 3}, 3),
    ({'num_groups': 2, 'use_bias': False}, 2),
    ({'num_groups': 2, 'use_scale': False}, 2),
    # More groups than features: a group has the least size.
    ({'num_groups': 32, 'min_group_size': 2}, 3),
  ],
)
def test_group_norm(shape, fields, groups):
  layer, x, variables = _group_norm(shape, **fields)
  weights = variables[base_layer.PARAMS]
  assert ('beta' in weights) == fields.get('use_bias', True)
  assert ('gamma' in weights) == fields.get('use_scale', True)
  want = _grouped(x, groups)
  want = want * (1 + weights.get('gamma', 0.0)) + weights.get('beta', 0.0)
  np.testing.assert_allclose(layer.apply(variables, x), want, atol=1e-5)


VALID = np.arange(5) < np.array([[5], [2]])


@pytest.mark.parametrize('shape', [(2, 5, 6), (2, 5, 4, 6)])
def test_group_norm_counts_what_is_not_padded(shape):
  layer, x, _ = _group_norm(
    shape, num_groups=2, use_scale=False, use_bias=False
  )
  x[~VALID] = np.inf
  y = layer.apply({}, x, jnp.asarray(1.0 - VALID))
  np.testing.assert_allclose(y, _grouped(x, 2, VALID), atol=1e-5)


def test_group_norm_leaves_padded_output_alone_if_told_so():
  layer, x, variables = _group_norm(
    (2, 5, 6), num_groups=2, set_padded_output_to_zero=False
  )
  paddings = jnp.asarray(1.0 - VALID)
  y = np.asarray(layer.apply(variables, x, paddings))
  zeroed, _, _ = _group_norm((2, 5, 6), num_groups=2)
  np.testing.assert_allclose(
    y[VALID], zeroed.apply(variables, x, paddings)[VALID], rtol=1e-5
  )
  assert (y[~VALID] != 0).all()


@pytest.mark.parametrize('shape', [(2, 5, 6), (2, 5, 4, 6)])
@pytest.mark.parametrize('padded', [False, True])
def test_cumulative_group_norm(shape, padded):
  layer, x, _ = _group_norm(
    shape, num_groups=2, cumulative=True, use_scale=False, use_bias=False
  )
  valid = VALID if padded else np.ones_like(VALID)
  y = layer.apply({}, x, jnp.asarray(1.0 - valid) if padded else None)
  grouped = x.reshape(*shape[:-1], 2, 3).astype(np.float64)
  want = np.zeros(grouped.shape)
  for b, g in np.ndindex(2, 2):
    squares = []
    for t in np.flatnonzero(valid[b]):
      mean = grouped[b, : t + 1, ..., g, :].mean()
      squares.append(np.square(grouped[b, t, ..., g, :] - mean))
      deviation = np.sqrt(np.mean(squares) + 0.001)
      want[b, t, ..., g, :] = (grouped[b, t, ..., g, :] - mean) / deviation
  np.testing.assert_allclose(y, want.reshape(shape), atol=1e-5)


def test_cumulative_group_norm_does_not_look_ahead():
  layer, x, variables = _group_norm((2, 5, 6), num_groups=2, cumulative=True)
  y = layer.apply(variables, x)
  x[:, 3:] += 7
  np.testing.assert_allclose(
    layer.apply(variables, x)[:, :3], y[:, :3], atol=1e-6
  )


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'input_rank': 2}, 'input_rank is 2; expected 3, 4 or 5'),
    ({'input_rank': 4}, 'input_rank is 4'),
    ({'num_groups': 4}, 'cannot split 6 features into 4 groups'),
    ({'num_groups': 9, 'min_group_size': 4}, 'groups of 4'),
    ({'num_groups': 0}, 'num_groups is 0'),
  ],
)
def test_groups_that_do_not_fit_are_an_error(fields, message):
  fields = {'num_groups': 2, 'input_rank': 3, **fields}
  config = norm_layers.GroupNorm.config(dim=6, **fields)
  with pytest.raises(errors.UserError, match=message):
    config.Instantiate().init_boxed(jax.random.key(0), jnp.ones([2, 5, 6]))


def test_weight_norm():
  w = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
  g = np.array([0.0, 1.0, -0.5, 2.0], np.float32)
  layer = norm_layers.WeightNormL2.config(dim=4).Instantiate()
  (first,) = _first_weights(layer, w).values()
  assert (first.value == 0).all()
  y = layer.apply({base_layer.PARAMS: {'g': g}}, w)
  norms = np.sqrt((y**2).sum((0, 1)))
  np.testing.assert_allclose(norms, 1 + g, rtol=1e-5)
  want = w / np.sqrt((w**2).sum((0, 1))) * (1 + g)
  np.testing.assert_allclose(y, want, rtol=1e-5)


def _spectral_norm(w, **fields):
  config = norm_layers.SpectralNorm.config(dim=w.shape[-1], **fields)
  layer = config.Instantiate()
  variables = layer.init_boxed({base_layer.PARAMS: jax.random.key(0)}, w)
  return layer, base_layer.unbox(variables)


def test_spectral_norm_finds_the_largest_singular_value():
  w = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
  largest = np.linalg.svd(w.reshape(6, 4))[1][0]
  layer, variables = _spectral_norm(w, n_power_iteration=50)
  y, _ = layer.apply(variables, w, mutable=[base_layer.NON_TRAINABLE])
  np.testing.assert_allclose(y, w / largest, rtol=1e-4)


def test_spectral_norm_goes_on_with_its_estimate_while_it_trains():
  w = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
  largest = np.linalg.svd(w)[1][0]
  layer, variables = _spectral_norm(w)
  for _ in range(50):
    y, variables = layer.apply(variables, w, mutable=[base_layer.NON_TRAINABLE])
  np.testing.assert_allclose(y, w / largest, rtol=1e-4)
  with base_layer.eval_mode():
    _, after = layer.apply(variables, w + 1, mutable=[base_layer.NON_TRAINABLE])
  jax.tree.map(np.testing.assert_array_equal, after, variables)


def test_spectral_norm_takes_an_iteration_at_least():
  with pytest.raises(errors.UserError, match='n_power_iteration is 0'):
    _spectral_norm(np.ones([2, 2]), n_power_iteration=0)


@pytest.mark.parametrize(
  'config',
  [
    norm_layers.LayerNorm.config(),
    norm_layers.RmsNorm.config(),
    norm_layers.WeightNormL2.config(),
    norm_layers.SpectralNorm.config(),
    norm_layers.BatchNorm.config(),
  ],
  ids=lambda config: config.cls.__name__,
)
def test_weights_are_split_as_declared(x, config):
  split = config.cls.WeightSharding.config(wt=['mdl'])
  config.set(dim=DIM, weight_split_dims_mapping=split)
  variables = config.Instantiate().init_boxed(jax.random.key(0), x)
  boxes = jax.tree.leaves(variables, is_leaf=base_layer.is_boxed)
  boxes = [box for box in boxes if base_layer.is_boxed(box)]
  assert boxes
  for box in boxes:
    assert list(box.meta.tensor_split_dims_mapping) == ['mdl']
