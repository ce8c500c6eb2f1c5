"""The arithmetic of one train step of a learner.

Gradients are measured and scaled, regularized, and given to the optimizers.
Everything that a step depends on is in `Step` or an argument.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat import base_layer, optimizers
from pax_compat.base_layer import var_overwrite_with_gradient
from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.learners import param_groups
from pax_compat.learners.branches import select
from pax_compat.learners.gradients import (
  gradient_norms,
  gradient_scaling,
  regularization,
)
from pax_compat.learners.gradients.norm_tracking import (
  GradNormTracker,
  NormStatistics,
)
from pax_compat.learners.gradients.update_scale import initial_scale
from pax_compat.learners.param_groups import ParamGroup
from pax_compat.learners.settings import LearnerSettings
from pax_compat.learners.state import moving_average
from pax_compat.learners.variable_names import as_tree, pick
from pax_compat.schedules import evaluated

Arrays = dict[str, jax.Array]
WeightMetas = Mapping[str, base_layer.WeightHParams]

# (name, optimizer, paths of weights); the name is '' for all weights.
OptimizerPaths = tuple[str, optimizers.BaseOptimizer, Collection[str]]


class Step(NamedTuple):
  """The inputs of a step.

  Attributes:
    settings: the learner's fields.
    groups: the optimizers with their weights; the first one's `ema_decay` is
      that of all weights.
    metas: metadata of each weight, by path.
    gradients: gradients of the trained weights, by path.
    row_statistics: those of the gradients of looked-up tables, by path.
    loss_weights: weights [] of the batch's loss, by the optimizer's name.
    source_factors: factors [] of gradients by the batch's data source, by path;
      1 where missing.
    schedules: states of schedules that depend on evaluations, by key.
  """

  settings: LearnerSettings
  groups: Sequence[ParamGroup]
  metas: WeightMetas
  gradients: Arrays
  row_statistics: Mapping[str, RowStatistics]
  loss_weights: Arrays
  source_factors: Arrays
  schedules: Mapping[str, evaluated.State]


class StepScale(NamedTuple):
  """How the gradients of a step are scaled.

  Attributes:
    factors: of each gradient, by path.
    is_valid: [], bool.
    metrics: scalars to report, by name.
    norms: statistics of gradient norms after the step; None without a tracker.
  """

  factors: Arrays
  is_valid: jax.Array
  metrics: Arrays
  norms: NormStatistics | None


def overwritten_paths(metas: WeightMetas) -> set[str]:
  """Returns the paths of weights that a step replaces by their gradients."""
  return {p for p, m in metas.items() if var_overwrite_with_gradient(m)}


def overwritten(
  gradients: Arrays, weights: Arrays, metas: WeightMetas
) -> Arrays:
  """Returns the new values of these weights, those of `gradients`, by path."""
  new = pick(gradients, overwritten_paths(metas))
  return {path: x.astype(weights[path].dtype) for path, x in new.items()}


def gradient_scale(
  step: Step,
  weights: Arrays,
  scaled_together: Sequence[OptimizerPaths],
  tracker: GradNormTracker | None,
  norms: NormStatistics | None,
) -> StepScale:
  """Returns how gradients are scaled.

  Args:
    step: the inputs of the step.
    weights: all weights by path.
    scaled_together: groups of gradients, with the optimizer whose limits scale
      a group.
    tracker: rejects steps by their norm; goes with a single group.
    norms: statistics of the steps before, for `tracker`.
  """
  settings, squares = step.settings, _squares_of_gradients(step, weights)
  scalings = {
    name: gradient_scaling.scaling(
      pick(squares, paths), limits_of(settings, optimizer)
    )
    for name, optimizer, paths in scaled_together
  }
  if tracker:
    [whole] = scalings.values()
    keep, norms = tracker.step(norms, whole.raw_grad_norm)
    scalings = {'': whole.times(keep)}
  is_valid, metrics = gradient_scaling.step_metrics(
    scalings,
    norms=settings.grad_norm_summary,
    check=settings.check_valid_step,
  )
  if settings.grad_norm_individual_vars:
    metrics |= gradient_norms.norm_metrics('per_var_grad_norm', squares)
  factors = {p: f for one in scalings.values() for p, f in one.factors.items()}
  factors |= {p: factors[p] * x for p, x in step.source_factors.items()}
  if tracker:
    metrics['learning/rejected_steps'] = norms.total_rejections
  return StepScale(factors, is_valid, metrics, norms)


def optimize(
  step: Step, factors: Arrays, weights: Arrays, optimizer_state: Any, average
) -> tuple[Arrays, Any, moving_average.AverageState | None]:
  """Makes the step of each optimizer.

  Args:
    step: the inputs of the step.
    factors: as in `StepScale`.
    weights: all weights by path.
    optimizer_state: states of optimizers, as `param_groups.join_states` joins
      them.
    average: the moving average of weights, if there is one.

  Returns:
    The updates of trained weights, by path, the next optimizer state, and the
    next moving average.
  """
  if not step.settings.keep_optimizer_state_for_excluded_vars:
    weights = pick(weights, step.gradients)
  gradients = _regularized_gradients(step, factors, weights)
  states = param_groups.split_states(optimizer_state, step.groups)
  updates, new_states = {}, {}
  with evaluated.states(step.schedules):
    for group in step.groups:
      own, new_states[group.name] = group.step(
        gradients,
        states[group.name],
        weights,
        step.metas,
        step.loss_weights[group.name],
        step.row_statistics,
      )
      updates |= own
  if step.settings.scale_update_by_var_norm:
    for path in gradients:
      updates[path] = updates[path] * initial_scale(path, step.metas[path])
  updates_of_trained = pick(updates, gradients)
  if average is not None:
    average = _next_average(step, average, weights, updates_of_trained, states)
  return updates_of_trained, param_groups.join_states(new_states), average


def optimizer_metrics(step: Step, optimizer_state: Any) -> Arrays:
  """Returns learning rates [], and metrics [] of optimizers, by name."""
  states = param_groups.split_states(optimizer_state, step.groups)
  metrics: Arrays = {}
  with evaluated.states(step.schedules):
    for group in step.groups:
      own = states[group.name]
      name = f'learning/lr_{group.name}' if group.name else 'learning/lr'
      metrics |= {name: group.learning_rate(own), **group.metrics(own)}
  return metrics


def weight_norms(step: Step, weights: Arrays) -> Arrays:
  """Returns the norms [] of trained weights that the settings ask for."""
  settings, metrics = step.settings, {}
  if settings.var_norm_summary or settings.var_norm_individual_vars:
    trained = pick(weights, step.gradients)
    squares = gradient_norms.squares(trained, _stacked_dims(step, trained))
    if settings.var_norm_summary:
      metrics['learning/var_norm'] = gradient_norms.norm(squares)
    if settings.var_norm_individual_vars:
      metrics |= gradient_norms.norm_metrics('per_var_norm', squares)
  return metrics


def update_norm(step: Step, updates: Arrays) -> Arrays:
  """Returns the global norm [] of the updates, if the settings ask for it.

  Args:
    step: the inputs of the step.
    updates: by path; empty for a step that is skipped, whose norm is zero.
  """
  if not step.settings.grad_norm_summary:
    return {}
  squares = gradient_norms.squares(updates, dict.fromkeys(updates, 0))
  return {'learning/applied_grad_norm': gradient_norms.norm(squares)}


def _squares_of_gradients(step: Step, weights: Arrays) -> Arrays:
  """Returns the sum of squares of each gradient, by path."""
  terms = {}
  if step.settings.regularize_before_clipping:
    terms = _lp_terms(step, weights)
  squares = gradient_norms.squares(
    step.gradients,
    _stacked_dims(step, step.gradients),
    step.row_statistics,
    terms,
  )
  factors = step.source_factors.items()
  return squares | {p: squares[p] * jnp.square(x) for p, x in factors}


def _regularized_gradients(
  step: Step, factors: Arrays, weights: Arrays
) -> Arrays:
  """Returns scaled and regularized gradients, as the optimizers get them."""
  terms, gradients = _lp_terms(step, weights), step.gradients
  limits = limits_of(step.settings, step.groups[0].optimizer)
  if step.settings.regularize_before_clipping:
    gradients = regularization.add_terms(gradients, terms)
  gradients = gradient_norms.scale(gradients, factors, or_zero=limits.may_zero)
  if step.settings.regularize_before_clipping:
    return gradients
  sources = step.source_factors
  terms |= {p: terms[p] * x for p, x in sources.items() if p in terms}
  return regularization.add_terms(gradients, terms)


def _lp_terms(step: Step, weights: Arrays) -> Arrays:
  """Returns the gradients of L1 and L2 regularization, by path."""
  trained, terms = pick(weights, step.gradients), {}
  for group in step.groups:
    terms |= group.lp_terms(trained, step.metas, step.row_statistics)
  return terms


def _next_average(step, average, weights, updates, states):
  """Returns the next moving average of `weights` with their `updates`."""
  # By default only steps that update weights count, so that accumulating the
  # gradients of several batches is like having them in one.
  primary = step.groups[0]
  if step.settings.ema_after_update:
    weights = weights | optax.apply_updates(pick(weights, updates), updates)
  new = moving_average.next_average(
    average,
    as_tree(weights),
    primary.optimizer.ema_decay,
    step.settings.ema_step_of,
  )
  if step.settings.ema_every_step:
    return new
  return select(primary.updates_weights(states[primary.name]), new, average)


def _stacked_dims(step: Step, paths: Collection[str]) -> dict[str, int]:
  """Returns how many leading dimensions of each weight are stacked layers."""
  sizes = step.settings.stacked_sizes
  return {path: len(sizes(step.metas[path])) for path in paths}


def limits_of(
  settings: LearnerSettings, optimizer: optimizers.BaseOptimizer
) -> gradient_scaling.Limits:
  """Returns the limits of the gradients that an optimizer's fields scale."""
  return gradient_scaling.Limits(
    norm=optimizer.clip_gradient_norm_to_value,
    single_norm=optimizer.clip_gradient_single_norm_to_value,
    zero_norm=settings.grad_norm_to_clip_to_zero,
    invalid_norm=settings.skip_step_gradient_norm_value,
    zero_nonfinite=settings.nonfinite_gradients == 'zero',
  )
