"""Mean and variance over positions that are not padded."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat.layers.paddings import expand_paddings


def compute_moments(
  inputs: jax.Array,
  padding: jax.Array | None,
  reduce_over_dims: Sequence[int],
  cumulative_axis: int | None = None,
  keepdims: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Returns mean and variance over the positions that are not padded.

  If the batch is split over devices, they are those of the global batch.

  Args:
    inputs: any shape.
    padding: leading dimensions of `inputs`, or None.
    reduce_over_dims: the dimensions to reduce.
    cumulative_axis: a dimension along which statistics are cumulative: those of
      a position include itself and the positions before it, each with its
      squared difference from its own cumulative mean. None for no cumulation.
    keepdims: whether to keep the reduced dimensions with size 1.

  Returns:
    Mean and variance, float32; zeros where everything is padded.
  """
  x = inputs.astype(jnp.float32)
  axes = tuple(reduce_over_dims)
  along = [n if i == cumulative_axis else 1 for i, n in enumerate(x.shape)]
  valid = jnp.ones(along, bool)
  if padding is not None:
    valid = expand_paddings(padding, x) <= 0

  def total(values):
    values = jnp.sum(values, axis=axes, keepdims=True)
    if cumulative_axis is None:
      return values
    return jnp.cumsum(values, axis=cumulative_axis)

  def valid_only(values):
    return values if padding is None else jnp.where(valid, values, 0)

  each = math.prod(x.shape[i] for i in axes if valid.shape[i] == 1)
  count = jnp.maximum(each * total(valid.astype(jnp.float32)), 1.0)
  # Before any arithmetic, so that infinite padding has a gradient of zero.
  x = valid_only(x)
  mean = total(x) / count
  variance = total(jnp.square(valid_only(x - mean))) / count
  if not keepdims:
    mean, variance = jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)
  return mean, variance
