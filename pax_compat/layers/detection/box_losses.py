"""Losses of boxes and of their classes."""

import math

import jax
import jax.numpy as jnp

from pax_compat.layers.detection import boxes

# Of the sum of weights that errors are divided by.
_EPSILON = 1e-6


def sigmoid_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each class, independent of the others.

  Args:
    logits: [..., C].
    labels: [..., C], probabilities.
  """
  # Its gradient is right at 0, too, unlike that of a formula with `abs`.
  return jnp.logaddexp(logits, 0.0) - logits * labels


def focal_loss(
  logits: jax.Array, labels: jax.Array, *, alpha: float, gamma: float
) -> jax.Array:
  """Returns the focal loss of each class, https://arxiv.org/abs/1708.02002.

  Classes are independent of each other: each has a sigmoid.

  Args:
    logits: [..., C].
    labels: [..., C], 0 or 1.
    alpha: weight of positive labels; that of negative ones is 1 - `alpha`.
    gamma: exponent of the probability of the other label; 0 for none.
  """
  loss = sigmoid_loss(logits, labels)
  if gamma:
    loss *= jax.nn.sigmoid(logits * (1 - 2 * labels)) ** gamma
  return loss * (alpha * labels + (1 - alpha) * (1 - labels))


def scaled_huber(errors: jax.Array, delta: float = 1.0) -> jax.Array:
  """Returns Huber losses divided by `delta`.

  It is `errors` ** 2 / (2 * `delta`) up to `delta`, and linear with slope 1
  beyond.

  Args:
    errors: predictions - labels.
    delta: the largest error with a quadratic loss.
  """
  size = jnp.abs(errors)
  quadratic = jnp.minimum(size, delta)
  return (0.5 * quadratic**2 + delta * (size - quadratic)) / delta


def corner_loss(
  wanted: jax.Array, predicted: jax.Array, *, is_symmetric: bool = True
) -> jax.Array:
  """Returns the distance of the corners of boxes.

  Args:
    wanted: [..., 7].
    predicted: [..., 7].
    is_symmetric: whether of the wanted box and that box turned by pi it is the
      smaller one.

  Returns:
    [...], the sum of Huber losses of coordinates.
  """
  found = boxes.corners(predicted)

  def distance(box: jax.Array) -> jax.Array:
    return jnp.sum(scaled_huber(found - boxes.corners(box)), axis=(-2, -1))

  if not is_symmetric:
    return distance(wanted)
  turned = wanted.at[..., 6].add(math.pi)
  return jnp.minimum(distance(wanted), distance(turned))


def mean_errors(
  wanted: jax.Array, predicted: jax.Array, weights: jax.Array
) -> dict[str, jax.Array]:
  """Returns the mean differences of boxes by name, without a gradient.

  Args:
    wanted: [..., 7].
    predicted: [..., 7].
    weights: [..., 1].
  """
  error = jax.lax.stop_gradient(wanted - predicted)
  distance = jnp.linalg.norm(error[..., :3], axis=-1, keepdims=True)
  values = jnp.concatenate([distance, error[..., 3:]], axis=-1)
  total = jnp.sum(weights) + _EPSILON
  axes = tuple(range(values.ndim - 1))
  means = jnp.sum(values * weights, axis=axes) / total
  return {
    'error/center_distance': means[0],
    'error/length': means[1],
    'error/width': means[2],
    'error/height': means[3],
    'error/rotation_deg': means[4] * (180 / math.pi),
  }
