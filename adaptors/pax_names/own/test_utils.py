"""What unit tests of layers need: `praxis.test_utils`."""

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from adaptors.pax_names.own.lingvo_variables import (  # noqa: F401 (for users)
  replace_jax_attention_vars_to_tf,
  replace_jax_conformer_layer_vars_to_tf,
  replace_jax_conv_bnact_vars_to_tf,
  replace_jax_light_conv_vars_to_tf,
  replace_jax_res_net_block_vars_to_tf,
  replace_jax_res_net_vars_to_tf,
  replace_jax_simple_full_softmax_vars_to_tf,
  replace_jax_single_shard_full_softmax_vars_to_tf,
  replace_jax_transformer_ffwd_vars_to_tf,
  to_tf_nmap,
)
from pax_compat import base_layer
from pax_compat.nested_map import NestedMap


class TestCase(parameterized.TestCase):
  """A test case that compares arrays."""

  def setUp(self):
    super().setUp()
    # The same numbers in each run, others in each test.
    seed = zlib.adler32(self._testMethodName.encode())
    self._rng = np.random.RandomState(seed)

  def rng(self) -> np.random.RandomState:
    """Returns the random generator of this test."""
    return self._rng

  def assertNear(self, f1, f2, err, msg=None):
    """Fails unless two numbers differ by at most `err`."""
    f1, f2 = float(f1), float(f2)
    near = f1 == f2 or math.fabs(f1 - f2) <= err
    self.assertTrue(near, f'{f1} != {f2} +/- {err} {msg or ""}')

  def assertDtypesMatch(self, x, y):
    """Fails unless two arrays have the same dtype, with 32 bits for 64."""
    self.assertEqual(*map(_dtype, (x, y)))

  def assertAllClose(
    self, x, y, check_dtypes=True, rtol=1e-5, atol=1e-5, **kwargs
  ):
    """Fails unless two arrays are equal but for rounding."""
    if check_dtypes:
      self.assertDtypesMatch(x, y)
    np.testing.assert_allclose(
      _widened(x), _widened(y), rtol=rtol, atol=atol, **kwargs
    )

  def assertNotAllClose(self, x, y, **kwargs):
    """Fails if two arrays are equal but for rounding."""
    try:
      self.assertAllClose(x, y, **kwargs)
    except AssertionError:
      return
    self.fail(f'the values are close: {x} {y}')

  def assertArraysEqual(self, x, y, check_dtypes=True, **kwargs):
    """Fails unless two arrays are equal."""
    if check_dtypes:
      self.assertDtypesMatch(x, y)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y), **kwargs)


def _dtype(x: Any) -> np.dtype:
  """Returns the dtype of an array of JAX, numpy or TensorFlow."""
  dtype = getattr(x, 'dtype', None) or np.asarray(x).dtype
  return jax.dtypes.canonicalize_dtype(getattr(dtype, 'as_numpy_dtype', dtype))


def _widened(x: Any) -> np.ndarray:
  x = np.asarray(x)
  return x.astype(np.float32) if x.dtype == jnp.bfloat16 else x


def to_np(x: Any) -> np.ndarray:
  """Returns an array of JAX or TensorFlow as float32."""
  return np.asarray(x, np.float32)


def unshard_input_nmap(x_nmap: NestedMap) -> NestedMap:
  """Returns arrays [devices, B, ...] as [devices * B, ...]."""
  return jax.tree.map(lambda x: jnp.reshape(x, (-1, *x.shape[2:])), x_nmap)


def apply(layer, layer_vars, method, *args, context_p=None, **kwargs):
  """Returns what a layer's method computes, within a context.

  Args:
    layer: the layer.
    layer_vars: its variables.
    method: the method.
    *args: its arguments.
    context_p: config of the `JaxContext`; None for the default.
    **kwargs: its arguments by name.
  """
  with base_layer.JaxContext.new_context(hparams=context_p):
    return layer.apply(layer_vars, *args, method=method, **kwargs)
