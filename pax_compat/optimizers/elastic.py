"""Elastic weight consolidation: weights are pulled to where they started.

Each step subtracts rate * weight / 2 * (w - w0) from a weight w, where w0 is
its value at the optimizer's first step. The weight can be multiplied by a
factor of its own for each w.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors


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
  factors: Any = None,
) -> optax.GradientTransformation:
  """Returns a transformation with elastic weight consolidation after it.

  Args:
    transformation: from gradients to updates; its state is a tuple, whose last
      item has the `count` of steps.
    learning_rate_fn: from the count to the rate [].
    weight: of the consolidation, positive.
    factors: a tree with the keys of the weights, of factors of `weight`, that
      have the shape of the weight or broadcast to it; None for 1.

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

    def pulled(path, u, w, first):
      factor = _factor(factors, path, w.shape)
      return (u - strength * factor * (w - first)).astype(u.dtype)

    updates = jax.tree_util.tree_map_with_path(pulled, updates, params, start)
    return updates, (ElasticState(start), *rest)

  return optax.GradientTransformationExtraArgs(init, update)


def _factor(factors: Any, path, shape: tuple[int, ...]) -> Any:
  """Returns the factor of the weight at a path."""
  if factors is None:
    return 1.0
  by_path = {
    jax.tree_util.keystr(key, simple=True, separator='/'): x
    for key, x in jax.tree_util.tree_leaves_with_path(factors)
  }
  name = jax.tree_util.keystr(path, simple=True, separator='/')
  if name not in by_path:
    raise errors.UserError(
      f'ewc_weight_per_var has no factor for the weight {name!r}'
      + errors.did_you_mean(name, by_path)
    )
  factor = jnp.asarray(by_path[name])
  sizes = zip(reversed(factor.shape), reversed(shape), strict=False)
  if factor.ndim > len(shape) or any(n not in (1, m) for n, m in sizes):
    raise errors.UserError(
      f'ewc_weight_per_var has a factor of the shape {list(factor.shape)} for'
      f' {name!r}, of the shape {list(shape)} (of one layer, if several are'
      ' stacked); expected a number, or the shape of the weight'
    )
  return factor
