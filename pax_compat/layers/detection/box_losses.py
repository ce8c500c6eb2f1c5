"""Losses of boxes and of their classes."""

import math

import jax
import jax.numpy as jnp

from pax_compat.layers.detection import boxes


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
  loss = jnp.maximum(logits, 0) - logits * labels
  loss += jnp.log1p(jnp.exp(-jnp.abs(logits)))
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


def corner_loss(wanted: jax.Array, predicted: jax.Array) -> jax.Array:
  """Returns the distance of the corners of boxes.

  Of the wanted box and that box turned by pi it is the smaller one.

  Args:
    wanted: [..., 7].
    predicted: [..., 7].

  Returns:
    [...], the sum of Huber losses of coordinates.
  """
  found = boxes.corners(predicted)
  turned = wanted.at[..., 6].add(math.pi)
  losses = (
    jnp.sum(scaled_huber(found - boxes.corners(one)), axis=(-2, -1))
    for one in (wanted, turned)
  )
  return jnp.minimum(*losses)
