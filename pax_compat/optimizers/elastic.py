"""Elastic weight consolidation: weights are pulled to where they started.

Each step subtracts rate * weight / 2 * (w - w0) from a weight w, where w0 is
its value at the optimizer's first step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class ElasticState(NamedTuple):
  """What weights are pulled to.

  Attributes:
    start: the weights before the first step.
  """

  start: Any


def consolidated(
  transformation: optax.GradientTransformation,
  learning_rate_fn: Callable[[jax.Array], jax.Array],
  weight: float,
) -> optax.GradientTransformation:
  """Returns a transformation with elastic weight consolidation after it.

  Args:
    transformation: from gradients to updates; its state is a tuple, whose last
      item has the `count` of steps.
    learning_rate_fn: from the count to the rate [].
    weight: of the consolidation, positive.

  Returns:
    The transformation; its state has an `ElasticState` before the others.
  """
  inner = optax.with_extra_args_support(transformation)

  def init(weights):
    start = jax.tree.map(jnp.copy, weights)
    return (ElasticState(start), *inner.init(weights))

  def update(gradients, state, params=None, **others):
    elastic, *rest = state
    count = rest[-1].count
    updates, rest = inner.update(gradients, tuple(rest), params, **others)
    # A run may restore weights after `init`, before its first step.
    start = jax.tree.map(
      lambda w, first: jnp.where(count == 0, w, first), params, elastic.start
    )
    strength = learning_rate_fn(count) * weight / 2
    updates = jax.tree.map(
      lambda u, w, first: (u - strength * (w - first)).astype(u.dtype),
      updates,
      params,
      start,
    )
    return updates, (ElasticState(start), *rest)

  return optax.GradientTransformationExtraArgs(init, update)
