"""Values of the replicas of a step within `jax.pmap(axis_name='batch')`.

Outside of it there is one replica, whose values stay as they are.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, base_metrics, errors

_AXIS = base_layer.PMAP_PARALLEL_AXIS_NAME


def are_several() -> bool:
  """Whether a step is traced within `jax.pmap(axis_name='batch')`."""
  return base_layer.is_running_under_pmap()


def sum_of(tree: Any) -> Any:
  """Returns the sums over the replicas."""
  return jax.lax.psum(tree, _AXIS) if are_several() else tree


def share(
  loss: jax.Array, weight: jax.Array, aggregator: base_metrics.LossAggregator
) -> jax.Array:
  """Returns a replica's part of the mean loss.

  Raises:
    UserError: the loss is a sum of several, which have no common weight, or of
      a class with an `aggregate` of its own, which may divide it itself.
  """
  if type(aggregator).aggregate is not base_metrics.LossAggregator.aggregate:
    raise errors.UserError(
      f'{type(aggregator).__name__}.aggregate is not supported within jax.pmap;'
      ' expected one loss, of LossAggregator, or jax.jit'
    )
  return loss * weight / jax.lax.psum(weight, _AXIS)


def merged(
  weighted: Mapping[str, tuple[jax.Array, jax.Array]],
  clu: Mapping[str, Any],
  per_example: Any,
  summaries: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any], Any, dict[str, Any]]:
  """Returns the outputs of all replicas.

  Args:
    weighted: metrics, which become means over all examples.
    clu: clu metrics.
    per_example: outputs [B, ...], which become those of all batches.
    summaries: scalars, which become means, and others by name.
  """
  scalars, others = summaries
  arrays = {name: one.value for name, one in others.items()}
  if not are_several():
    return dict(weighted), dict(clu), per_example, {**scalars, **arrays}
  means = {}
  for name, (value, weight) in weighted.items():
    total = jax.lax.psum(weight, _AXIS)
    means[name] = jax.lax.psum(value * weight, _AXIS) / (total + 1e-8), total
  arrays = {
    name: jax.lax.all_gather(jnp.atleast_1d(x), _AXIS, tiled=True)
    for name, x in arrays.items()
  }
  return (
    means,
    {k: jax.lax.all_gather(m, _AXIS).reduce() for k, m in clu.items()},
    jax.lax.all_gather(per_example, _AXIS, tiled=True),
    {**jax.lax.pmean(dict(scalars), _AXIS), **arrays},
  )


def synchronized(before: Any, after: Any, metas: Mapping[str, Any]) -> Any:
  """Returns variables that are alike in all replicas.

  Args:
    before: those before the step, by collection.
    after: those after it.
    metas: metadata of all variables, by collection.
  """
  if not are_several():
    return after

  def one(old, new, meta):
    if new.dtype == bool:
      return new
    if base_layer.var_requires_sum_sync(meta):
      return old + jax.lax.psum(new - old, _AXIS)
    mean = old + jax.lax.pmean(new - old, _AXIS)
    if jnp.issubdtype(old.dtype, jnp.integer):
      mean = jnp.round(mean)
    return mean.astype(new.dtype)

  return jax.tree.map(one, before, after, {name: metas[name] for name in after})
