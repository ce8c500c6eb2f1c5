"""Quantized momentum."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.optimizers import momentum_storage


@pytest.mark.parametrize('dtype,buckets', [('int8', 127), ('int16', 32767)])
def test_values_are_in_the_nearest_bucket(dtype, buckets):
  momentum = np.random.default_rng(0).normal(size=[7, 3, 2]).astype('float32')
  momentum[:, 1, 1] = 0.0
  kept, width = momentum_storage.quantize(jnp.asarray(momentum), dtype)
  assert kept.dtype == jnp.dtype(dtype)
  np.testing.assert_allclose(
    width, np.max(np.abs(momentum), axis=0) / buckets, rtol=1e-6
  )
  assert np.max(np.abs(np.int32(kept)), axis=0).tolist() == [
    [buckets, buckets],
    [buckets, 0],
    [buckets, buckets],
  ]
  restored = momentum_storage.dequantize(kept, width)
  # Half a bucket, and rounding to float32.
  assert np.all(np.abs(restored - momentum) <= 0.5 * width * (1 + 1e-2))


@pytest.mark.parametrize('dtype', ['int8', 'int16'])
def test_quantization_is_idempotent(dtype):
  momentum = np.random.default_rng(1).normal(size=[5, 4]).astype('float32')
  kept, width = momentum_storage.quantize(jnp.asarray(momentum), dtype)
  again, _ = momentum_storage.quantize(
    momentum_storage.dequantize(kept, width), dtype
  )
  np.testing.assert_array_equal(again, kept)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_floats_are_rounded(dtype):
  momentum = jnp.asarray([0.1, -3.0, 0.0])
  kept, width = momentum_storage.quantize(momentum, dtype)
  assert kept.dtype == jnp.dtype(dtype) and width.shape == (1,)
  np.testing.assert_array_equal(
    momentum_storage.dequantize(kept, width),
    np.asarray(momentum.astype(dtype), np.float32),
  )


def test_a_scalar_is_not_quantized():
  kept, width = momentum_storage.quantize(jnp.float32(0.3), 'int8')
  assert kept.dtype == jnp.float32 and width.shape == (1,)
  assert momentum_storage.dequantize(kept, width) == jnp.float32(0.3)
