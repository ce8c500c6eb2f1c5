"""The learner: from gradients to the next weights, with what is said of both.

A tree here is the `params` collection: nested dicts of arrays, unboxed.
Gradients are measured and scaled down, then regularised, and given to the
optimizer.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from pax_compat import base_layer, errors, optimizers
from pax_compat.config import Config
from pax_compat.layer_core.row_gradients import RowFacts
from pax_compat.learners import branches, variable_names
from pax_compat.learners import parts as parts_lib
from pax_compat.learners.gradients import (
  data_sources,
  gradient_norms,
  gradient_scaling,
  regularization,
)
from pax_compat.learners.gradients.gradient_scaling import IS_VALID_STEP
from pax_compat.learners.gradients.norm_tracking import NormStatistics
from pax_compat.learners.gradients.update_scale import first_scale
from pax_compat.learners.parts import Part
from pax_compat.learners.settings import BY_SOURCE, LearnerSettings
from pax_compat.learners.state import moving_average
from pax_compat.learners.state.stacked_layers import StackedTransformation
from pax_compat.learners.variable_names import as_tree, by_path, path_name

Arrays = dict[str, jax.Array]
WeightMetas = Mapping[str, base_layer.WeightHParams]


class _Step(NamedTuple):
  """What a step is made of.

  Attributes:
    gradients: those of the trained weights, by path.
    parts: the optimizers with their weights.
    metas: what each weight is, by path.
    row_facts: facts about the gradients of looked-up tables, by path.
    loss_weight: [], what the batch weighs.
    shares: by path what a gradient is multiplied by, if anything, because of
      where the batch comes from.
  """

  gradients: Arrays
  parts: Sequence[Part]
  metas: WeightMetas
  row_facts: Mapping[str, RowFacts]
  loss_weight: jax.Array
  shares: Arrays


class LearnerState(NamedTuple):
  """What a learner remembers from one step to the next.

  Attributes:
    optimizer: the optimizer's state; of several optimizers a dict, by name.
    average: the moving average of the weights, if there is one.
    norms: what is known of the norms of gradients, if they are tracked.
  """

  optimizer: Any
  average: moving_average.AverageState | None
  norms: NormStatistics | None = None


class Learner(LearnerSettings):
  """Optimizes one loss.

  `bprop_variable_exclusion` and `bprop_variable_inclusion` hold regular
  expressions that must match the whole name of a weight, which is its path
  behind its collection, such as `params/lm/softmax/linear/w`; each must match
  one. A weight that is excluded (or not included, where inclusions are given)
  keeps its value, counts in no norm, and has no state.

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
  `learning/var_norm` before the step, `learning/rejected_steps` that a tracker
  of norms has left out so far, and for each weight
  `per_var_grad_norm/<name>` (before scaling) and `per_var_norm/<name>`, with
  `/<layer>` behind where layers are stacked.

  The fields are those of `LearnerSettings`.
  """

  def __post_init__(self):
    super().__post_init__()
    self._primary = self._built(self.optimizer)
    tracker = self.grad_norm_tracker
    self._norm_tracker = tracker and tracker.Instantiate()
    self._source: jax.Array | None = None

  @property
  def has_ema(self) -> bool:
    """Whether the learner keeps a moving average of the weights."""
    return self._primary.ema_decay > 0

  def check_names(self, names: Collection[str]):
    """Raises a UserError where an expression matches the name of no weight.

    Args:
      names: of all weights, also of those that are not trainable, such as
        `non_trainable/bn/moving_mean`.
    """
    for field, patterns in (
      ('bprop_variable_exclusion', self._excluding),
      ('bprop_variable_inclusion', self._including),
      (BY_SOURCE, sum(self._by_source, [])),
    ):
      variable_names.check_matches(patterns, names, self._where(field))

  def init(self, params: Any, *, weight_metas: WeightMetas) -> LearnerState:
    """Returns the first state.

    Args:
      params: the first weights.
      weight_metas: what each weight is, by its path.

    Raises:
      UserError: the expression of an optimizer matches the name of no weight,
        or those of two match the same.
    """
    weights = self._held(params, weight_metas)
    states = {p.name: p.init(weights) for p in self._parts(weight_metas)}
    average = None
    if self.has_ema:
      average = moving_average.first_average(as_tree(weights))
    norms = self._norm_tracker.init() if self._norm_tracker else None
    return LearnerState(parts_lib.joined(states), average, norms)

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
    norms = None
    if self._norm_tracker:
      norms = self._norm_tracker.abstract_state(elsewhere)
    return LearnerState(parts_lib.joined(states), average, norms)

  def update(
    self,
    params: Any,
    state: LearnerState,
    gradients: Any,
    *,
    weight_metas: WeightMetas,
    row_facts: Mapping[str, RowFacts] | None = None,
    loss_weight: jax.Array | float = 1.0,
    due: jax.Array | bool = True,
    also: Callable[[], Arrays] = dict,
  ) -> tuple[Any, LearnerState, Arrays, Arrays]:
    """Makes one step.

    Args:
      params: the weights.
      state: what `init` or the last step returned.
      gradients: a tree like `params`.
      weight_metas: what each weight is, by its path.
      row_facts: facts about the gradients of looked-up tables, by path.
      loss_weight: [], what the loss of the batch weighs among other batches, by
        which some optimizers go.
      due: [], bool, whether those norms are wanted that only describe.
      also: makes further norms [] of the old weights, by name.

    Returns:
      The new weights, the new state, scalars that describe the step, and the
      norms that may be due (`learning/var_norm`, `learning/applied_grad_norm`,
      `per_var_norm/...` and the further ones); zeros where they are not.
    """
    trained = self._trained(weight_metas)
    step = _Step(
      gradients=_pick(by_path(gradients), trained),
      parts=self._parts(weight_metas),
      metas=weight_metas,
      row_facts=row_facts or {},
      loss_weight=jnp.asarray(loss_weight, jnp.float32),
      shares=self._shares(trained),
    )
    factors, is_valid, metrics, tracked = self._scaling(step, params, state)
    metrics |= self._learning_rates(step, state)

    @jax.jit  # Traced once, though norms need it too.
    def optimized(arrays, factors, params, state):
      return self._optimized(step._replace(**arrays), factors, params, state)

    def made(factors):
      names = ('gradients', 'row_facts', 'loss_weight', 'shares')
      arrays = {name: getattr(step, name) for name in names}
      return optimized(arrays, factors, params, state)

    norms = branches.either(
      due,
      lambda: also() | self._norms(step, params, made(factors)[0], is_valid),
    )
    factors, is_valid = branches.after(norms, (factors, is_valid))

    def moved():
      updates, new_state = made(factors)
      weights = _pick(by_path(params), updates)
      new_params = _replaced(params, optax.apply_updates(weights, updates))
      return new_params, new_state._replace(norms=tracked)

    if self._skips:
      new = branches.either(is_valid, moved, lambda: (params, state))
    else:
      new = moved()
    return *new, metrics, norms

  def of(self, batch: Any) -> 'Learner':
    """Returns what makes the step on a batch.

    That is this learner, but where it matters which data source it comes from.
    """
    if not self._by_source:
      return self
    own = copy.copy(self)
    own._source = data_sources.selected(
      batch, len(self._by_source), self._where(BY_SOURCE)
    )
    return own

  def check_rests(self):
    """Raises a UserError if an optimizer cannot rest while others step."""
    for optimizer in self._optimizers:
      optimizer.check_rests()

  def rested(
    self, state: LearnerState, *, weight_metas: WeightMetas
  ) -> LearnerState:
    """Returns the state after a step in which the weights were not trained.

    Its optimizers must be able to rest; see `check_rests`.

    Args:
      state: what `init` or the last step returned.
      weight_metas: what each weight is, by its path.
    """
    parts = self._parts(weight_metas)
    states = parts_lib.by_name(state.optimizer, parts)
    rested = {part.name: part.rested(states[part.name]) for part in parts}
    average = state.average
    if average is not None:
      average = average._replace(count=average.count + 1)
    return state._replace(optimizer=parts_lib.joined(rested), average=average)

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

  def _built(self, optimizer: Config) -> optimizers.BaseOptimizer:
    """Returns an optimizer; it has a learning rate."""
    if not isinstance(optimizer, Config):
      raise errors.UserError(
        f'{self._where("optimizer")} is {optimizer!r}; expected the config of'
        ' an optimizer, such as optimizers.Adam.config(learning_rate=1e-3)'
      )
    built = optimizer.Instantiate()
    built.learning_rate_fn()
    return built

  @property
  def _optimizers(self) -> list[optimizers.BaseOptimizer]:
    return [self._primary]

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
    names = {path: variable_names.full_name(path) for path in weight_metas}
    return {path for path, name in names.items() if not self._excludes(name)}

  def _excludes(self, name: str) -> bool:
    if self._including:
      return not any(p.fullmatch(name) for p in self._including)
    return any(p.fullmatch(name) for p in self._excluding)

  def _shares(self, paths: Collection[str]) -> Arrays:
    """Returns the factors [] of gradients, by path, by their batch's source."""
    if not self._by_source:
      return {}
    if self._source is None:
      raise errors.UserError(
        f'{self._where(BY_SOURCE)} is given; expected a step of `of(batch)`'
      )
    return data_sources.factors(self._source, self._by_source, paths)

  def _held(self, tree: Any, weight_metas: WeightMetas) -> dict[str, Any]:
    """Returns what a tree of weights has of those that have a state."""
    leaves = by_path(tree, is_leaf=_is_meta)
    if self.keep_optimizer_state_for_excluded_vars:
      return leaves
    return _pick(leaves, self._trained(weight_metas))

  def _scaling(
    self, step: _Step, params: Any, state: LearnerState
  ) -> tuple[Arrays, jax.Array, Arrays, NormStatistics | None]:
    """Returns factors of gradients, whether they are valid [], and reports.

    At last what is known of their norms then.
    """
    terms = {}
    if self.regularize_before_clipping:
      terms = self._lp_terms(step, params)
    squares = gradient_norms.squares(
      step.gradients,
      self._stacked_dims(step.gradients, step.metas),
      step.row_facts,
      terms,
    )
    squares |= {p: squares[p] * jnp.square(x) for p, x in step.shares.items()}
    scalings = {
      name: gradient_scaling.scaling(
        _pick(squares, paths), self._limits(optimizer)
      )
      for name, optimizer, paths in self._scaled_together(step.parts)
    }
    tracked = None
    if self._norm_tracker:
      [whole] = scalings.values()
      keep, tracked = self._norm_tracker.step(state.norms, whole.raw_grad_norm)
      scalings = {'': whole.times(keep)}
    is_valid, metrics = gradient_scaling.reported(
      scalings, norms=self.grad_norm_summary, check=self.check_valid_step
    )
    if self.grad_norm_individual_vars:
      metrics |= gradient_norms.reported('per_var_grad_norm', squares)
    factors = {
      p: f for one in scalings.values() for p, f in one.factors.items()
    }
    factors |= {p: factors[p] * share for p, share in step.shares.items()}
    if tracked:
      metrics['learning/rejected_steps'] = tracked.total_rejections
    return factors, is_valid, metrics, tracked

  def _forces(self, step: _Step, factors: Arrays, params: Any) -> Arrays:
    """Returns gradients as the optimizers see them, scaled and regularised."""
    terms, gradients = self._lp_terms(step, params), step.gradients
    if self.regularize_before_clipping:
      gradients = regularization.added(gradients, terms)
    gradients = gradient_norms.scaled(
      gradients, factors, or_zero=self._limits(self._primary).may_zero
    )
    if self.regularize_before_clipping:
      return gradients
    shares = step.shares
    terms |= {p: terms[p] * x for p, x in shares.items() if p in terms}
    return regularization.added(gradients, terms)

  def _lp_terms(self, step: _Step, params: Any) -> Arrays:
    """Returns what regularisation adds to gradients, by path."""
    weights = _pick(by_path(params), step.gradients)
    terms = {}
    for part in step.parts:
      terms |= part.lp_terms(weights, step.metas, step.row_facts)
    return terms

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
    self, step: _Step, factors: Arrays, params: Any, state: LearnerState
  ) -> tuple[Arrays, LearnerState]:
    """Returns the updates of trained weights, by path, and the next state."""
    forces = self._forces(step, factors, params)
    states = parts_lib.by_name(state.optimizer, step.parts)
    held = self._held(params, step.metas)
    updates, new_states = {}, {}
    for part in step.parts:
      own, new_states[part.name] = part.step(
        forces, states[part.name], held, step.metas, step.loss_weight
      )
      updates |= own
    if self.scale_update_by_var_norm:
      for path in forces:
        updates[path] = updates[path] * first_scale(path, step.metas[path])
    average = state.average
    if self.has_ema:
      # Only steps that update weights count, so that collecting the gradients
      # of several batches is like having them in one.
      primary, seen = step.parts[0], held
      if self.ema_after_update:
        moved = _pick(held, forces)
        seen = held | optax.apply_updates(moved, _pick(updates, forces))
      average = _select(
        primary.updates_weights(states[primary.name]),
        moving_average.next_average(
          average, as_tree(seen), self._primary.ema_decay
        ),
        average,
      )
    new_state = state._replace(
      optimizer=parts_lib.joined(new_states), average=average
    )
    return _pick(updates, forces), new_state

  def _learning_rates(self, step: _Step, state: LearnerState) -> Arrays:
    states = parts_lib.by_name(state.optimizer, step.parts)
    return {
      f'learning/lr_{part.name}'
      if part.name
      else 'learning/lr': part.learning_rate(states[part.name])
      for part in step.parts
    }

  def _norms(
    self, step: _Step, params: Any, updates: Arrays, is_valid: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns the norms of weights and updates that are wanted."""
    metrics = {}
    if self.var_norm_summary or self.var_norm_individual_vars:
      weights = _pick(by_path(params), step.gradients)
      squares = gradient_norms.squares(
        weights, self._stacked_dims(weights, step.metas)
      )
      if self.var_norm_summary:
        metrics['learning/var_norm'] = gradient_norms.norm(squares)
      if self.var_norm_individual_vars:
        metrics |= gradient_norms.reported('per_var_norm', squares)
    if self.grad_norm_summary:
      applied = gradient_norms.norm(
        gradient_norms.squares(updates, dict.fromkeys(updates, 0))
      )
      if self._skips:
        applied = jnp.where(is_valid, applied, 0)
      metrics['learning/applied_grad_norm'] = applied
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
