"""Linear layers against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import activations, linears

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
W = RNG.normal(size=(4, 5)).astype(np.float32)
B = RNG.normal(size=(5,)).astype(np.float32)


def _config(**fields):
  return linears.FeedForward.config(input_dims=4, output_dims=5, **fields)


def _boxes(config):
  return config.Instantiate().init({PARAMS: jax.random.key(0)}, X)[PARAMS]


def test_feed_forward():
  weights = {'linear': {'w': W}, 'bias': {'b': B}}
  config = _config(activation_tpl=activations.Tanh.config())
  y = config.Instantiate().apply({PARAMS: weights}, X)
  want = np.tanh(np.tensordot(X, W, axes=1) + B)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_the_activation_is_relu_unless_said():
  y = (
    _config(has_bias=False)
    .Instantiate()
    .apply({PARAMS: {'linear': {'w': W}}}, X)
  )
  want = np.maximum(np.tensordot(X, W, axes=1), 0)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_weights_as_declared():
  boxes = _boxes(
    _config(bias_init=0.5, weight_split_dims_mapping=['data', 'mdl'])
  )
  assert boxes['linear']['w'].value.shape == (4, 5)
  np.testing.assert_array_equal(boxes['bias']['b'].value, np.full(5, 0.5))
  split = {
    k: b.meta.tensor_split_dims_mapping
    for k, b in {**boxes['linear'], **boxes['bias']}.items()
  }
  assert split == {'w': ('data', 'mdl'), 'b': ('mdl',)}
  assert set(_boxes(_config(has_bias=False))) == {'linear'}


def test_computes_in_the_dtype_of_the_computation():
  config = _config(fprop_dtype=jnp.bfloat16)
  boxes = base_layer.unbox(_boxes(config))
  assert boxes['linear']['w'].dtype == jnp.float32
  y = config.Instantiate().apply({PARAMS: boxes}, X.astype(jnp.bfloat16))
  assert y.dtype == jnp.bfloat16


def test_dims_are_required():
  with pytest.raises(errors.UserError, match='output_dims is required'):
    linears.Linear.config(input_dims=1).Instantiate()
