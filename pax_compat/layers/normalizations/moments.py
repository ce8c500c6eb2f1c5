"""Mean and variance over what is not padded."""

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

  Where the batch is split over devices, they are those of the whole batch: a
  sum over a dimension that is split is a sum over devices.

  Args:
    inputs: of any shape.
    padding: of the first dimensions of `inputs`, or None.
    reduce_over_dims: the dimensions to reduce.
    cumulative_axis: a dimension along which each position counts itself and
      those before it, whose squared differences are from the mean up to
      themselves; None for none.
    keepdims: whether the reduced dimensions stay, with size 1.

  Returns:
    Mean and variance in single precision; zeros where everything is padded.
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
  # What stands at padded positions may be infinite: its gradient, too, must be
  # of zero.
  x = valid_only(x)
  mean = total(x) / count
  variance = total(jnp.square(valid_only(x - mean))) / count
  if not keepdims:
    mean, variance = jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)
  return mean, variance
