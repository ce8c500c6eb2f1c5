"""Bounds for rounding that lie below the largest value."""

import jax
import jax.numpy as jnp
import numpy as np

# Factors on the bound that are tried; the first of the best ones is taken.
_FACTORS = np.linspace(1.0, 0.5, num=11)


def get_best_bound(
  t: jax.Array,
  bound: jax.Array,
  min_value: float,
  max_value: float,
  p_value: float = 1.0,
  per_channel: bool = False,
) -> jax.Array:
  """Returns the bound whose rounding has the smallest error.

  Bounds from the given one down to half of it are tried. The error is the mean
  of abs(rounded - value)**p_value.

  Args:
    t: the values, of any shape.
    bound: the largest absolute values, of the same rank, with a size of 1 where
      values share a bound.
    min_value: the smallest integer.
    max_value: the largest integer.
    p_value: exponent of the error.
    per_channel: whether each bound has a factor of its own.

  Returns:
    The bounds, of the shape of `bound`.
  """
  shared = tuple(i for i, n in enumerate(bound.shape) if n == 1)

  def error(factor: jax.Array) -> jax.Array:
    scale = bound * factor / max_value
    rounded = jnp.clip(jnp.round(t / scale), min_value, max_value) * scale
    powers = jnp.abs(rounded - t) ** p_value
    if per_channel:
      return jnp.mean(powers, axis=shared, keepdims=True)
    return jnp.mean(powers)

  factors = jnp.asarray(_FACTORS, bound.dtype)
  return bound * factors[jnp.argmin(jax.vmap(error)(factors), axis=0)]
