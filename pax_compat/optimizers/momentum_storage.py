"""Momentum in few bits: rounded, or quantized to buckets.

Shapes: N first dimension of a weight, `...` the others.
"""

import jax
import jax.numpy as jnp


def quantize(momentum: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array]:
  """Returns a rounded or quantized momentum.

  Args:
    momentum: [N, ...] or [], in float32.
    dtype: a float type to round to, or an integer type of bucket numbers.
      Buckets are symmetric around 0, and the largest absolute value along
      dimension 0 gives their width. A momentum of rank 0 stays float32 then.

  Returns:
    The momentum in `dtype`, and the width of buckets [...] in float32; zero [1]
    without buckets.
  """
  dtype = jnp.dtype(dtype)
  if jnp.issubdtype(dtype, jnp.floating):
    return momentum.astype(dtype), jnp.zeros([1])
  if not momentum.ndim:
    return momentum, jnp.zeros([1])
  width = jnp.max(jnp.abs(momentum), axis=0) / jnp.iinfo(dtype).max
  buckets = jnp.round(momentum / jnp.where(width > 0, width, 1.0))
  return buckets.astype(dtype), width


def dequantize(stored: jax.Array, width: jax.Array) -> jax.Array:
  """Returns the momentum [N, ...] in float32; reverses `quantize`."""
  values = stored.astype(jnp.float32)
  if jnp.issubdtype(stored.dtype, jnp.integer):
    values *= width
  return values
