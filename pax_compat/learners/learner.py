"""The learner: from gradients to the next weights, with what is said of both.

A tree here is the `params` collection: nested dicts of arrays, unboxed.
Gradients are measured and scaled down, then regularised, and given to the
optimizer.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from pax_compat import base_layer, errors, optimizers
from pax_compat.layers.row_gradients import RowFacts
from pax_compat.learners import (
  gradient_norms,
  gradient_scaling,
  moving_average,
  regularization,
  variable_names,
)
from pax_compat.learners import parts as parts_lib
from pax_compat.learners.gradient_scaling import IS_VALID_STEP
from pax_compat.learners.parts import Part
from pax_compat.learners.settings import LearnerSettings
from pax_compat.learners.stacked_layers import StackedTransformation
from pax_compat.learners.update_scale import first_scale
from pax_compat.learners.variable_names import as_tree, by_path, path_name

Arrays = dict[str, jax.Array]
WeightMetas = Mapping[str, base_layer.WeightHParams]


class LearnerState(NamedTuple):
  """What a learner remembers from one step to the next.

  Attributes:
    optimizer: the optimizer's state; of several optimizers a dict, by name.
    average: the moving average of the weights, if there is one.
  """

  optimizer: Any
  average: moving_average.AverageState | None


class Learner(LearnerSettings):
  """Optimizes one loss.

  `bprop_variable_exclusion` and `bprop_variable_inclusion` hold regular
  expressions that must match the whole name of a weight, which is its path
  behind `params/`, such as `params/lm/softmax/linear/w`; each must match one. A
  weight that is excluded (or not included, where inclusions are given) keeps
  its value, counts in no norm, and has no state.

  A step is invalid if the norm of its gradients is not finite or too large. It
  is skipped: weights and the learner's state stay as they were, and variables
  that are not trainable should too (see `next_variables`).

  Where several layers are stacked in one weight (see
  `WeightHParams.repeat_prefix`), each layer has its own norms, its own factors
  of clipping, and its own optimizer of per-weight kind. Transformations that
  draw random numbers draw the same for each.

  What is reported: `learning/lr`, `learning/is_valid_step` (1 or 0) and
  `learning/grad_scale`, the factor of all gradients; and as the fields below
  say, `learning/raw_grad_norm` before and `learning/clipped_grad_norm` after
  scaling, `learning/applied_grad_norm` of what is added to the weights,
  `learning/var_norm` before the step, and for each weight
  `per_var_grad_norm/<name>` (before scaling) and `per_var_norm/<name>`, with
  `/<layer>` behind where layers are stacked.

  The fields are those of `LearnerSettings`.
  """

  def __post_init__(self):
    super().__post_init__()
    self._primary = self.optimizer.Instantiate()

  @property
  def has_ema(self) -> bool:
    """Whether the learner keeps a moving average of the weights."""
    return self._primary.ema_decay > 0

  def init(self, params: Any, *, weight_metas: WeightMetas) -> LearnerState:
    """Returns the first state.

    Args:
      params: the first weights.
      weight_metas: what each weight is, by its path.

    Raises:
      UserError: an expression matches the name of no weight, or those of two
        optimizers match the same.
    """
    weights = self._held(params, weight_metas)
    states = {p.name: p.init(weights) for p in self._parts(weight_metas)}
    average = None
    if self.has_ema:
      average = moving_average.first_average(as_tree(weights))
    return LearnerState(parts_lib.joined(states), average)

  def abstract_state(
    self, params: Any, *, weight_metas: WeightMetas
  ) -> LearnerState:
    """Returns shapes, dtypes and shardings of the state.

    What belongs to a weight is split over the mesh as the weight is; see
    `state_leaves.leaf_sharding`. The rest is whole on every device.

    Args:
      params: shapes, dtypes and shardings of the weights.
      weight_metas: what each weight is, by its path.
    """
    weights = self._held(params, weight_metas)
    elsewhere = None
    for weight in weights.values():
      if isinstance(weight.sharding, NamedSharding):
        elsewhere = NamedSharding(weight.sharding.mesh, PartitionSpec())
    states = {
      part.name: part.abstract_state(weights, elsewhere)
      for part in self._parts(weight_metas)
    }
    average = None
    if self.has_ema:
      average = moving_average.placed_average(as_tree(weights), elsewhere)
    return LearnerState(parts_lib.joined(states), average)

  def update(
    self,
    params: Any,
    state: LearnerState,
    gradients: Any,
    *,
    weight_metas: WeightMetas,
    row_facts: Mapping[str, RowFacts] | None = None,
  ) -> tuple[Any, LearnerState, dict[str, jax.Array]]:
    """Makes one step.

    Args:
      params: the weights.
      state: what `init` or the last step returned.
      gradients: a tree like `params`.
      weight_metas: what each weight is, by its path.
      row_facts: facts about the gradients of looked-up tables, by path.

    Returns:
      The new weights, the new state, and scalars that describe the step.
    """
    row_facts = row_facts or {}
    parts = self._parts(weight_metas)
    trained = self._trained(weight_metas)
    held = self._held(params, weight_metas)
    weights = _pick(held, trained)
    terms = {}
    for part in parts:
      terms |= part.lp_terms(weights, weight_metas, row_facts)
    gradients, is_valid, metrics = self._scaled(
      _pick(by_path(gradients), trained), terms, parts, weight_metas, row_facts
    )
    if not self.regularize_before_clipping:
      gradients = regularization.added(gradients, terms)
    updates, new_state, rates = self._optimized(
      gradients, state, held, parts, weight_metas
    )
    updates = _pick(updates, trained)
    new_weights = optax.apply_updates(weights, updates)
    new_params = _replaced(params, new_weights)
    metrics |= rates | self._norms_of_weights(weights, weight_metas)
    applied = gradient_norms.norm(
      gradient_norms.squares(updates, dict.fromkeys(updates, 0))
    )
    if self._skips:
      new_params, new_state = _select(
        is_valid, (new_params, new_state), (params, state)
      )
      applied = jnp.where(is_valid, applied, 0)
    if self.grad_norm_summary:
      metrics['learning/applied_grad_norm'] = applied
    return new_params, new_state, metrics

  def next_variables(
    self,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    metrics: Mapping[str, jax.Array],
  ) -> dict[str, Any]:
    """Returns the next variables that are not trainable.

    They are the new ones, but for those of a step that was skipped and those
    whose names, such as `non_trainable/bn/moving_mean`, the learner's
    expressions exclude.

    Args:
      old: trees of variables before the step, by collection.
      new: likewise after it; the trees and keys that `old` has.
      metrics: what `update` said of the step.
    """
    result = {}
    for collection, tree in old.items():
      after = new[collection]
      if self._skips:
        after = _select(metrics[IS_VALID_STEP] > 0, after, tree)
      kept = {
        path: value
        for path, value in by_path(tree).items()
        if self._excludes(variable_names.full_name(path, collection))
      }
      result[collection] = _replaced(after, kept)
    return result

  def ema_weights(self, state: LearnerState, params: Any) -> Any:
    """Returns the moving averages of the weights.

    Args:
      state: the learner's state.
      params: the weights, whose dtypes the averages get. Weights that have no
        average are themselves in the result.

    Raises:
      UserError: there is no moving average.
    """
    if not self.has_ema:
      raise errors.UserError(
        f'{self._where("optimizer")}: there is no moving average of the'
        ' weights; expected an ema_decay above 0'
      )
    weights = by_path(params)
    averages = by_path(state.average.ema)
    return _replaced(
      params, {p: e.astype(weights[p].dtype) for p, e in averages.items()}
    )

  @property
  def _skips(self) -> bool:
    """Whether steps that are not valid are skipped."""
    return (
      self.check_valid_step
      and self.enable_skip_step_on_gradient_anomalies
      and self.nonfinite_gradients == 'skip'
    )

  def _assigned(
    self, paths: Collection[str]
  ) -> list[tuple[str, optimizers.BaseOptimizer, Collection[str]]]:
    """Returns (name, optimizer, paths of its weights) of each optimizer."""
    return [('', self._primary, paths)]

  def _scaled_together(
    self, parts: Sequence[Part]
  ) -> list[tuple[str, optimizers.BaseOptimizer, Collection[str]]]:
    """Returns (name, optimizer, paths) of gradients that are scaled together.

    The name is '' for all gradients; the optimizer says how they are scaled.
    """
    return [('', self._primary, [p for part in parts for p in part.paths])]

  def _parts(self, weight_metas: WeightMetas) -> list[Part]:
    """Returns the optimizers with those of their weights that have a state."""
    held = self._held(weight_metas, weight_metas)
    parts = []
    for name, optimizer, paths in self._assigned(weight_metas):
      own = [path for path in paths if path in held]
      transformation = StackedTransformation(
        transformation=optimizer.grad_transformation(),
        prefixes={path: self._prefix(weight_metas[path]) for path in own},
        all_paths=tuple(weight_metas),
        separator=self.repeat_prefix_sep,
        always_groups=self.force_repeat_prefix_structure,
      )
      parts.append(Part(name, optimizer, own, transformation))
    return parts

  def _prefix(self, meta: base_layer.WeightHParams) -> tuple[int, ...]:
    """Returns the sizes of the dimensions that are taken as stacked layers."""
    return tuple(meta.repeat_prefix) if self.vectorize_on_repeat_prefix else ()

  def _trained(self, weight_metas: WeightMetas) -> set[str]:
    """Returns the paths of the weights that are trained."""
    for field, patterns in (
      ('bprop_variable_exclusion', self._excluding),
      ('bprop_variable_inclusion', self._including),
    ):
      variable_names.check_matches(patterns, weight_metas, self._where(field))
    names = {path: variable_names.full_name(path) for path in weight_metas}
    return {path for path, name in names.items() if not self._excludes(name)}

  def _excludes(self, name: str) -> bool:
    if self._including:
      return not any(p.fullmatch(name) for p in self._including)
    return any(p.fullmatch(name) for p in self._excluding)

  def _held(self, tree: Any, weight_metas: WeightMetas) -> dict[str, Any]:
    """Returns what a tree of weights has of those that have a state."""
    leaves = by_path(tree, is_leaf=_is_meta)
    if self.keep_optimizer_state_for_excluded_vars:
      return leaves
    return _pick(leaves, self._trained(weight_metas))

  def _scaled(
    self, gradients: Arrays, terms: Arrays, parts, weight_metas, row_facts
  ) -> tuple[Arrays, jax.Array, dict[str, jax.Array]]:
    """Returns scaled gradients, whether they are valid [], and reports."""
    before = self.regularize_before_clipping
    squares = gradient_norms.squares(
      gradients,
      self._stacked_dims(gradients, weight_metas),
      row_facts,
      terms if before else {},
    )
    scalings = {
      name: gradient_scaling.scaling(
        _pick(squares, paths), self._limits(optimizer)
      )
      for name, optimizer, paths in self._scaled_together(parts)
    }
    is_valid, metrics = gradient_scaling.reported(
      scalings, norms=self.grad_norm_summary, check=self.check_valid_step
    )
    if self.grad_norm_individual_vars:
      metrics |= gradient_norms.reported('per_var_grad_norm', squares)
    if before:
      gradients = regularization.added(gradients, terms)
    factors = {
      p: f for one in scalings.values() for p, f in one.factors.items()
    }
    gradients = gradient_norms.scaled(
      gradients, factors, or_zero=self._limits(self._primary).may_zero
    )
    return gradients, is_valid, metrics

  def _stacked_dims(self, paths, weight_metas: WeightMetas) -> dict[str, int]:
    return {path: len(self._prefix(weight_metas[path])) for path in paths}

  def _limits(self, optimizer: optimizers.BaseOptimizer):
    return gradient_scaling.Limits(
      norm=optimizer.clip_gradient_norm_to_value,
      single_norm=optimizer.clip_gradient_single_norm_to_value,
      zero_norm=self.grad_norm_to_clip_to_zero,
      invalid_norm=self.skip_step_gradient_norm_value,
      zero_nonfinite=self.nonfinite_gradients == 'zero',
    )

  def _optimized(
    self, gradients: Arrays, state: LearnerState, weights: Arrays, parts, metas
  ) -> tuple[Arrays, LearnerState, dict[str, jax.Array]]:
    """Returns updates of weights by path, the next state, and reports."""
    states = parts_lib.by_name(state.optimizer, parts)
    steps = {
      part.name: part.step(gradients, states[part.name], weights, metas)
      for part in parts
    }
    updates = {p: u for step in steps.values() for p, u in step.updates.items()}
    if self.scale_update_by_var_norm:
      for path in gradients:
        updates[path] = updates[path] * first_scale(path, metas[path])
    rates = {
      f'learning/lr_{name}' if name else 'learning/lr': step.learning_rate
      for name, step in steps.items()
    }
    average = state.average
    if self.has_ema:
      # Only steps that update weights count, so that collecting the gradients
      # of several batches is like having them in one.
      average = _select(
        steps[parts[0].name].updates_weights,
        moving_average.next_average(
          average, as_tree(weights), self._primary.ema_decay
        ),
        average,
      )
    new = parts_lib.joined({name: step.state for name, step in steps.items()})
    return updates, LearnerState(new, average), rates

  def _norms_of_weights(self, weights: Arrays, weight_metas: WeightMetas):
    squares = gradient_norms.squares(
      weights, self._stacked_dims(weights, weight_metas)
    )
    metrics = {}
    if self.var_norm_summary:
      metrics['learning/var_norm'] = gradient_norms.norm(squares)
    if self.var_norm_individual_vars:
      metrics |= gradient_norms.reported('per_var_norm', squares)
    return metrics


def _is_meta(x: Any) -> bool:
  return isinstance(x, base_layer.WeightHParams)


def _pick(values: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
  """Returns the values at some of the paths, in the order that they have."""
  return {path: value for path, value in values.items() if path in paths}


def _replaced(tree: Any, leaves: Mapping[str, Any]) -> Any:
  """Returns a tree with other leaves at some paths."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaves.get(path_name(path), leaf), tree
  )


def _select(condition: jax.Array, new: Any, old: Any) -> Any:
  """Returns one of two trees."""
  return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)
