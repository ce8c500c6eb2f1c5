"""Poolings of the points of a cloud, some of which are padding.

Shapes: P points, D features.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def maximum(x: jax.Array, axis: int) -> jax.Array:
  """Returns the maximum along an axis; equal largest values share a gradient.

  As `jnp.max`, whose gradient is not a number where XLA computes `x` twice with
  different rounding: then no element equals the maximum.

  Args:
    x: the values.
    axis: the axis to reduce.
  """
  return jnp.max(x, axis=axis)


@maximum.defjvp
def _maximum_jvp(axis, primals, tangents):
  (x,), (tangent,) = primals, tangents
  largest = jnp.max(x, axis=axis)
  shares = _shares(x, largest, axis)
  return largest, jnp.sum(shares * tangent, axis=axis)


def _shares(x: jax.Array, largest: jax.Array, axis: int) -> jax.Array:
  """Returns the share of each value in the gradient of the maximum."""
  # One element is the largest even if rounding hides it.
  one = jnp.expand_dims(jnp.argmax(x, axis=axis), axis)
  index = jax.lax.broadcasted_iota(one.dtype, x.shape, axis % x.ndim)
  is_largest = (x >= jnp.expand_dims(largest, axis)) | (index == one)
  is_largest = jax.lax.stop_gradient(is_largest.astype(x.dtype))
  return is_largest / jnp.sum(is_largest, axis=axis, keepdims=True)


def padded_max(features: jax.Array, paddings: jax.Array) -> jax.Array:
  """Returns the maximum over points that are not padding.

  Args:
    features: [..., P, D].
    paddings: [..., P].

  Returns:
    [..., D]; 0 where all points are padding.
  """
  padded = paddings > 0
  masked = jnp.where(padded[..., None], -jnp.inf, features)
  is_empty = jnp.all(padded, axis=-1, keepdims=True)
  # Without infinities, of which a gradient could not be 0.
  masked = jnp.where(is_empty[..., None], 0.0, masked)
  return jnp.where(is_empty, 0.0, maximum(masked, -2)).astype(features.dtype)


def padded_sum(features: jax.Array, paddings: jax.Array) -> jax.Array:
  """Returns the sum over points that are not padding, [..., D].

  Args:
    features: [..., P, D].
    paddings: [..., P].
  """
  return jnp.sum(features * (1 - paddings)[..., None], axis=-2)


def padded_mean(features: jax.Array, paddings: jax.Array) -> jax.Array:
  """Returns the mean over points that are not padding.

  Args:
    features: [..., P, D].
    paddings: [..., P].

  Returns:
    [..., D]; 0 where all points are padding.
  """
  count = jnp.sum(1 - paddings, axis=-1, keepdims=True)
  return padded_sum(features, paddings) / jnp.maximum(count, 1)
