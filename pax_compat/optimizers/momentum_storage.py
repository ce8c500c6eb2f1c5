"""How a momentum is kept in few bits: rounded, or counted in buckets.

N is the first dimension of a weight, `...` stands for the others.
"""

import jax
import jax.numpy as jnp


def stored(momentum: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array]:
  """Returns a momentum as it is kept.

  Args:
    momentum: [N, ...] or [], in float32.
    dtype: a float type to round to, or an integer type to count buckets in. The
      buckets are as wide as the largest value along dimension 0 asks for, and
      symmetric around 0. A momentum of rank 0 is kept in float32 then.

  Returns:
    The momentum in `dtype`, and the width of buckets [...] in float32; [1],
    zero, where there are no buckets.
  """
  dtype = jnp.dtype(dtype)
  if jnp.issubdtype(dtype, jnp.floating):
    return momentum.astype(dtype), jnp.zeros([1])
  if not momentum.ndim:
    return momentum, jnp.zeros([1])
  width = jnp.max(jnp.abs(momentum), axis=0) / jnp.iinfo(dtype).max
  buckets = jnp.round(momentum / jnp.where(width > 0, width, 1.0))
  return buckets.astype(dtype), width


def loaded(kept: jax.Array, width: jax.Array) -> jax.Array:
  """Returns the momentum [N, ...] in float32 that `stored` was given."""
  values = kept.astype(jnp.float32)
  if jnp.issubdtype(kept.dtype, jnp.integer):
    values *= width
  return values
