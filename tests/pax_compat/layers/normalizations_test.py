"""Layer normalisation against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.layers import normalizations

DIM = 6


def _layer(**fields):
  return normalizations.LayerNorm.config(dim=DIM, **fields).Instantiate()


def _first_weights(layer, x):
  variables = layer.init({base_layer.PARAMS: jax.random.key(0)}, x)
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
