"""Gradients of the losses of a train step."""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors, learners
from pax_compat.config_core.context_values import set_within
from pax_compat.layer_core.gradients import overwritten
from pax_compat.learners import sgf
from pax_compat.learners.step import overwritten_paths

# (batch, key, weights, probes) -> the loss [], or several by name; and
# (outputs, updated variables, other summaries).
LossFn = Callable[[Any, jax.Array, Any, Any], tuple[Any, Any]]


def of_step(
  loss_fn: LossFn,
  batch: Any,
  key: jax.Array,
  params: Any,
  probes: Any,
  *,
  learner: Any,
  weight_metas: Mapping[str, base_layer.WeightHParams],
  variables: Any,
  loss_weight: Callable[[Any], jax.Array],
) -> tuple[tuple[Any, Any], Any]:
  """Returns the gradients of weights and probes, and what else a loss returns.

  Args:
    loss_fn: see `TaskProgram._losses`.
    batch: the batch.
    key: for random numbers.
    params: the weights.
    probes: of embedding tables, with the paths of their weights.
    learner: the learner of the batch.
    weight_metas: metadata of each weight, by path.
    variables: all variables before the step, by collection.
    loss_weight: returns the weight [] of the loss from outputs.

  Raises:
    UserError: the learner's `stochastic_gradient` does not support the task.
  """
  others = learner.losses_of(weight_metas)
  replaced = overwritten_paths(weight_metas)
  loss_fn = _knowing_replaced(loss_fn, replaced)
  stochastic = learner.stochastic_gradient
  if stochastic is None:
    return _of_batch(
      functools.partial(loss_fn, batch, key), others, params, probes
    )
  for found, what in (
    (others, 'several losses are minimised'),
    (jax.tree.leaves(probes), 'embedding tables have sparse_gradients'),
    (
      replaced and type(stochastic) is not sgf.StandardGradient,
      'the gradients of some weights are their next values',
    ),
  ):
    if found:
      raise errors.UserError(
        f'stochastic_gradient is {type(stochastic).__name__}, and {what}, which'
        ' it does not support'
      )

  def loss_of(weights, others_and_batch, key):
    params, batch = others_and_batch
    own = learners.by_path(weights[base_layer.PARAMS])
    merged = learners.replace_leaves(params[base_layer.PARAMS], own)
    loss, aux = loss_fn(batch, key, merged, probes)
    weight = jnp.asarray(loss_weight(aux[0]), jnp.float32)
    return loss, sgf.GradAuxInfo(aux, weight)

  trained = learner.trained_paths(weight_metas)
  weights = {p: w for p, w in learners.by_path(params).items() if p in trained}
  (_, aux), found = stochastic.grad_fn(
    loss_of,
    {base_layer.PARAMS: learners.as_tree(weights)},
    ({base_layer.PARAMS: params}, batch),
    key,
  )
  gradients = learners.replace_leaves(
    jax.tree.map(jnp.zeros_like, params),
    learners.by_path(found[base_layer.PARAMS]),
  )
  outputs, updated, summaries = aux.aux_info
  # Means over examples are of floating point.
  updated = {
    name: jax.tree.map(lambda x, v: x.astype(v.dtype), tree, variables[name])
    for name, tree in updated.items()
  }
  reported = learners.by_path(getattr(aux, 'dp_aux_info', None) or {})
  private = {f'dp_metrics/{name}': value for name, value in reported.items()}
  outputs = outputs.replace(scalars=outputs.scalars | private)
  return (gradients, probes), (outputs, updated, summaries)


def _knowing_replaced(loss_fn: LossFn, paths: Collection[str]) -> LossFn:
  """Returns a loss whose layers know which weights a step replaces."""

  def loss(*args):
    with set_within(overwritten.PATHS, paths):
      return loss_fn(*args)

  return loss


def _of_batch(loss_fn, others, params, probes):
  """Returns `of_step` of the whole batch; `loss_fn` maps (params, probes)."""
  if not others:
    return jax.grad(loss_fn, argnums=(0, 1), has_aux=True)(params, probes)
  losses, of_cotangent, aux = jax.vjp(loss_fn, params, probes, has_aux=True)
  found = {
    name: of_cotangent(
      {k: jnp.full_like(x, float(k == name)) for k, x in losses.items()}
    )
    for name in losses
  }

  def own(path, *leaves):
    loss = others.get(learners.path_name(path), '')
    return dict(zip(found, leaves, strict=True))[loss]

  trees = zip(*found.values(), strict=True)
  return tuple(
    jax.tree_util.tree_map_with_path(own, *each, is_leaf=is_row_statistics)
    for each in trees
  ), aux


def is_row_statistics(x: Any) -> bool:
  return isinstance(x, learners.RowStatistics)
