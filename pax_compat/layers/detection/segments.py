"""Reductions of the points of a cloud by the segment that they are in.

Shapes: B batch, P points, S segments, D features. A point whose segment is not
below S is left out.
"""

import functools

import jax
import jax.numpy as jnp


def segment_sum(values: jax.Array, ids: jax.Array, count: int) -> jax.Array:
  """Returns the sum of each segment, [B, S, ...]; 0 for empty ones.

  Args:
    values: [B, P, ...].
    ids: [B, P] int.
    count: S.
  """
  return jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, count))(values, ids)


def segment_mean(values: jax.Array, ids: jax.Array, count: int) -> jax.Array:
  """Returns the mean of each segment, [B, S, D]; 0 for empty ones.

  Args:
    values: [B, P, D].
    ids: [B, P] int.
    count: S.
  """
  ones = jnp.ones(ids.shape, values.dtype)
  sizes = jnp.maximum(segment_sum(ones, ids, count), 1)
  return segment_sum(values, ids, count) / sizes[..., None]


def segment_max(values: jax.Array, ids: jax.Array, count: int) -> jax.Array:
  """Returns the maximum of each segment, [B, S, ...]; 0 for empty ones.

  Equal largest values share the gradient.

  Args:
    values: [B, P, ...], finite.
    ids: [B, P] int.
    count: S.
  """
  largest = jax.vmap(lambda x, i: _maximum(x, i, count))(values, ids)
  return jnp.where(jnp.isneginf(largest), 0.0, largest).astype(values.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _maximum(values: jax.Array, ids: jax.Array, count: int) -> jax.Array:
  """Returns the maxima of one cloud, [S, ...]; -inf for empty segments."""
  return jax.ops.segment_max(values, ids, count)


@_maximum.defjvp
def _maximum_jvp(count, primals, tangents):
  # XLA must not compute the values twice, with different rounding: then none of
  # them equals the maximum.
  values = jax.lax.optimization_barrier(primals[0])
  ids = primals[1]
  largest = jax.ops.segment_max(values, ids, count)
  of_points = largest.at[ids].get(mode='fill', fill_value=jnp.inf)
  is_largest = (values == of_points).astype(values.dtype)
  ties = jax.ops.segment_sum(is_largest, ids, count)
  ties = ties.at[ids].get(mode='fill', fill_value=1)
  shares = is_largest / jnp.maximum(ties, 1)
  return largest, jax.ops.segment_sum(shares * tangents[0], ids, count)
