"""The learner: gradient processing, optimizer update, and their metrics.

A tree here is the `params` collection: nested dicts of arrays, unboxed.
Gradients are measured, clipped and regularized, and given to the optimizer;
`step` has the arithmetic.
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
from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.learners import (
  branches,
  param_groups,
  step_methods,
  variable_names,
)
from pax_compat.learners import step as step_lib
from pax_compat.learners.gradients import data_sources
from pax_compat.learners.gradients.gradient_scaling import IS_VALID_STEP
from pax_compat.learners.gradients.norm_tracking import NormStatistics
from pax_compat.learners.param_groups import ParamGroup
from pax_compat.learners.settings import BY_SOURCE, LearnerSettings
from pax_compat.learners.state import moving_average
from pax_compat.learners.state.stacked_layers import StackedTransformation
from pax_compat.learners.step import Arrays, OptimizerPaths, Step, WeightMetas
from pax_compat.learners.variable_names import (
  as_tree,
  by_path,
  pick,
  replace_leaves,
)
from pax_compat.schedules import evaluated


class LearnerState(NamedTuple):
  """The state of a learner.

  Attributes:
    optimizer: the optimizer's state; a dict by name for several optimizers.
    average: the moving average of the weights, if there is one.
    norms: statistics of gradient norms, if they are tracked.
    schedules: states of schedules that depend on evaluations, by key; None if
      there are none.
  """

  optimizer: Any
  average: moving_average.AverageState | None
  norms: NormStatistics | None = None
  schedules: dict[str, evaluated.State] | None = None


class Learner(step_methods.StepMethods, LearnerSettings):
  """Optimizes one loss.

  `bprop_variable_exclusion` and `bprop_variable_inclusion` are regular
  expressions that must match the whole name of a weight, which is its path
  after its collection, such as `params/lm/softmax/linear/w`. Each must match a
  weight. An excluded weight (or one that no inclusion matches) keeps its value,
  is in no norm, and has no state.

  A step is invalid if the norm of its gradients is not finite or too large. It
  is skipped: weights and the learner's state do not change, nor should
  non-trainable variables (see `next_variables`).

  Where several layers are stacked in one weight (see
  `WeightHParams.repeat_prefix`), each layer has its own norms and clipping
  factors, and per-weight optimizers treat each layer separately.
  Transformations that draw random numbers draw the same for each layer.

  Metrics: `learning/lr`, `learning/is_valid_step` (1 or 0) and
  `learning/grad_scale`, the common factor of gradients. Depending on the
  fields: `learning/raw_grad_norm` before and `learning/clipped_grad_norm` after
  scaling, `learning/applied_grad_norm` of the updates, `learning/var_norm`
  before the step, `learning/rejected_steps` of a norm tracker, and for each
  weight `per_var_grad_norm/<name>` (before scaling) and `per_var_norm/<name>`,
  with `/<layer>` appended for stacked layers.

  The fields are those of `LearnerSettings`.

  >>> import jax.numpy as jnp
  >>> from pax_compat import base_layer, learners, optimizers
  >>> learner = learners.Learner.config(
  ...   optimizer=optimizers.Sgd.config(
  ...     learning_rate=0.1, clip_gradient_norm_to_value=1.0
  ...   )
  ... ).Instantiate()
  >>> params = {'w': jnp.array([1.0, 2.0])}
  >>> metas = {'w': base_layer.WeightHParams([2])}
  >>> state = learner.init(params, weight_metas=metas)
  >>> gradients = {'w': jnp.array([3.0, 4.0])}
  >>> params, state, metrics, norms = learner.update(
  ...   params, state, gradients, weight_metas=metas
  ... )
  >>> [round(float(w), 2) for w in params['w']]  # w - 0.1 * gradient / 5
  [0.94, 1.92]
  >>> float(metrics['learning/raw_grad_norm'])
  5.0
  """

  def __post_init__(self):
    super().__post_init__()
    self._optimizer_config = self.optimizer
    self._primary = self._built(self.optimizer)
    self.optimizer = self._primary
    if self.has_ema and not self.ema_every_step:
      self._primary.check_knows_updates('ema_decay')
    tracker = self.grad_norm_tracker
    self._norm_tracker = tracker and tracker.Instantiate()
    self._schedules = evaluated.schedules_within(
      *(
        # An optimizer may be built already.
        tpl if isinstance(tpl, Config) else tpl.hparams
        for tpl in self._optimizer_configs
      )
    )
    self._source: jax.Array | None = None

  @property
  def has_ema(self) -> bool:
    """Whether the learner keeps a moving average of the weights."""
    return self._primary.ema_decay > 0

  @property
  def other_losses(self) -> dict[str, str]:
    """Names of the losses of optimizers with another one than `loss_name`."""
    return {}

  def losses_of(self, weight_metas: WeightMetas) -> dict[str, str]:
    """Returns the losses of weights with another one than `loss_name`, by path.

    Args:
      weight_metas: metadata of each weight, by path.
    """
    return {
      path: self.other_losses[name]
      for name, _, paths in self._assigned(weight_metas)
      if name in self.other_losses
      for path in paths
    }

  def trained_paths(self, weight_metas: WeightMetas) -> set[str]:
    """Returns the paths of the trained weights."""
    names = {path: variable_names.full_name(path) for path in weight_metas}
    return {path for path, name in names.items() if not self.excludes(name)}

  def _optimized_paths(self, weight_metas: WeightMetas) -> set[str]:
    trained = self.trained_paths(weight_metas)
    return trained - step_lib.overwritten_paths(weight_metas)

  def check_names(self, names: Collection[str]):
    """Raises a UserError where an expression matches the name of no weight.

    Args:
      names: names of all variables, also of non-trainable ones, such as
        `non_trainable/bn/moving_mean`.
    """
    for field, patterns in (
      ('bprop_variable_exclusion', self._excluding),
      ('bprop_variable_inclusion', self._including),
      (BY_SOURCE, sum(self._by_source, [])),
      ('ema_variables', self._averaged),
    ):
      variable_names.check_matches(patterns, names, self._where(field))

  def init(
    self,
    params: Any,
    *,
    weight_metas: WeightMetas,
    variables: Mapping[str, Any] | None = None,
  ) -> LearnerState:
    """Returns the initial state.

    Args:
      params: the initial weights.
      weight_metas: metadata of each weight, by path.
      variables: the initial variables by collection, for `ema_variables`.

    Raises:
      UserError: the expression of an optimizer matches the name of no weight,
        or two of them match the same weight.
    """
    weights = self._with_state(params, weight_metas)
    states = {g.name: g.init(weights) for g in self._groups(weight_metas)}
    average = None
    if self.has_ema:
      average = moving_average.init_average(
        as_tree(weights), self._averaged_variables(variables)
      )
    norms = self._norm_tracker.init() if self._norm_tracker else None
    schedules = {
      key: jax.tree.map(jnp.asarray, one.initial_state())
      for key, one in self._schedules.items()
    }
    return LearnerState(
      param_groups.join_states(states), average, norms, schedules or None
    )

  def abstract_state(
    self,
    params: Any,
    *,
    weight_metas: WeightMetas,
    variables: Mapping[str, Any] | None = None,
  ) -> LearnerState:
    """Returns shapes, dtypes and shardings of the state.

    Leaves that belong to a weight are sharded like the weight; see
    `state_leaves.leaf_sharding`. Other leaves are replicated.

    Args:
      params: shapes, dtypes and shardings of the weights.
      weight_metas: metadata of each weight, by path.
      variables: those of all variables by collection, for `ema_variables`.
    """
    weights = self._with_state(params, weight_metas)
    replicated = None
    for weight in weights.values():
      if isinstance(weight.sharding, NamedSharding):
        replicated = NamedSharding(weight.sharding.mesh, PartitionSpec())
    states = {
      group.name: group.abstract_state(weights, replicated)
      for group in self._groups(weight_metas)
    }
    average = None
    if self.has_ema:
      average = moving_average.abstract_average(
        as_tree(weights), replicated, self._averaged_variables(variables)
      )
    norms = None
    if self._norm_tracker:
      norms = self._norm_tracker.abstract_state(replicated)
    schedules = {
      key: {
        name: jax.ShapeDtypeStruct([], x.dtype, sharding=replicated)
        for name, x in one.initial_state().items()
      }
      for key, one in self._schedules.items()
    }
    return LearnerState(
      param_groups.join_states(states), average, norms, schedules or None
    )

  def update(
    self,
    params: Any,
    state: LearnerState,
    gradients: Any,
    *,
    weight_metas: WeightMetas,
    row_statistics: Mapping[str, RowStatistics] | None = None,
    loss_weight: jax.Array | float | Mapping[str, jax.Array] = 1.0,
    with_norms: jax.Array | bool = True,
    other_norms: Callable[[], Arrays] = dict,
  ) -> tuple[Any, LearnerState, Arrays, Arrays]:
    """Makes one step.

    Args:
      params: the weights.
      state: of `init` or the last step.
      gradients: a tree like `params`.
      weight_metas: metadata of each weight, by path.
      row_statistics: those of the gradients of looked-up tables, by path.
      loss_weight: [], the weight of the batch's loss; of several, by name.
      with_norms: [], bool, whether the norms that only report are computed.
      other_norms: returns more norms [] of the old weights, by name.

    Returns:
      The new weights, the new state, metrics of the step, and norms
      (`learning/var_norm`, `per_var_norm/...` and `other_norms`), which are
      zero without `with_norms`.
    """
    weights = by_path(params)
    trained = pick(by_path(gradients), self.trained_paths(weight_metas))
    overwritten = step_lib.overwritten(trained, weights, weight_metas)
    step = self.step_of(
      gradients,
      state,
      weight_metas=weight_metas,
      row_statistics=row_statistics,
      loss_weight=loss_weight,
    )
    factors, is_valid, metrics, tracked = self.scale_of(step, weights, state)
    metrics |= step_lib.optimizer_metrics(step, state.optimizer)

    def norms_of_weights():
      return other_norms() | step_lib.weight_norms(step, weights)

    norms = branches.either(with_norms, norms_of_weights)
    factors, is_valid = branches.after(norms, (factors, is_valid))

    def updated():
      updates, optimizer, average = step_lib.optimize(
        step, factors, weights, state.optimizer, state.average
      )
      own = step_lib.update_norm(step, updates)
      new_weights = optax.apply_updates(pick(weights, updates), updates)
      new_weights |= overwritten
      new_state = LearnerState(optimizer, average, tracked, state.schedules)
      return replace_leaves(params, new_weights), new_state, own

    def skipped():
      return params, state, step_lib.update_norm(step, {})

    if self.skips_invalid_steps:
      new = branches.either(is_valid, updated, skipped)
    else:
      new = updated()
    new_params, new_state, own = new
    return new_params, new_state, metrics | own, norms

  def step_of(
    self,
    gradients: Any,
    state: LearnerState,
    *,
    weight_metas: WeightMetas,
    row_statistics: Mapping[str, RowStatistics] | None = None,
    loss_weight: jax.Array | float | Mapping[str, jax.Array] = 1.0,
  ) -> Step:
    """Returns the inputs of a step; the arguments are those of `update`."""
    trained = self._optimized_paths(weight_metas)
    groups = self._groups(weight_metas)
    return Step(
      settings=self,
      groups=groups,
      metas=weight_metas,
      gradients=pick(by_path(gradients), trained),
      row_statistics=row_statistics or {},
      loss_weights=self._loss_weights(groups, loss_weight),
      source_factors=self._source_factors(trained),
      schedules=state.schedules or {},
    )

  def scale_of(
    self, step: Step, weights: Arrays, state: LearnerState
  ) -> step_lib.StepScale:
    """Returns how the gradients of a step of weights, by path, are scaled."""
    together = self._scaled_together(step.groups)
    return step_lib.gradient_scale(
      step, weights, together, self._norm_tracker, state.norms
    )

  def of(self, batch: Any) -> 'Learner':
    """Returns the learner that makes the step on a batch.

    It is this learner, unless weights are trained by data source.
    """
    if not self._by_source:
      return self
    own = copy.copy(self)
    own._source = data_sources.selected(
      batch, len(self._by_source), self._where(BY_SOURCE)
    )
    return own

  def after_evaluations(
    self,
    state: LearnerState,
    step: int,
    measured: Mapping[str, Mapping[str, float]],
  ) -> LearnerState:
    """Returns the state after evaluations, on which schedules may depend.

    Args:
      state: of `init` or the last step.
      step: number of steps made.
      measured: scalars of the evaluations, by split and name.
    """
    if not state.schedules:
      return state
    return state._replace(
      schedules=evaluated.next_states(
        self._schedules, state.schedules, step, measured
      )
    )

  def check_supports_no_op_steps(self):
    """Raises a UserError if an optimizer does not support no-op steps."""
    for optimizer in self.named_optimizers().values():
      optimizer.check_supports_no_op_steps()

  def no_op_step(
    self, state: LearnerState, *, weight_metas: WeightMetas
  ) -> LearnerState:
    """Returns the state after a no-op step, which trains other weights only.

    Step counts, and so learning rates, go on. The optimizers must support it;
    see `check_supports_no_op_steps`.

    Args:
      state: of `init` or the last step.
      weight_metas: metadata of each weight, by path.
    """
    groups = self._groups(weight_metas)
    states = param_groups.split_states(state.optimizer, groups)
    states = {g.name: g.no_op_step(states[g.name]) for g in groups}
    average = state.average
    if average is not None:
      average = average._replace(count=average.count + 1)
    return state._replace(
      optimizer=param_groups.join_states(states), average=average
    )

  def next_variables(
    self,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    metrics: Mapping[str, jax.Array],
  ) -> dict[str, Any]:
    """Returns the next non-trainable variables.

    They are the new ones, except after a skipped step and where an expression
    excludes the name, such as `non_trainable/bn/moving_mean`.

    Args:
      old: trees of variables before the step, by collection.
      new: trees after it, with the collections and keys of `old`.
      metrics: metrics of the step, of `update`.
    """
    result = {}
    for collection, tree in old.items():
      after = new[collection]
      if self.skips_invalid_steps:
        after = branches.select(metrics[IS_VALID_STEP] > 0, after, tree)
      kept = {
        path: value
        for path, value in by_path(tree).items()
        if self.excludes(variable_names.full_name(path, collection))
      }
      result[collection] = replace_leaves(after, kept)
    return result

  def next_averages(
    self, old: LearnerState, new: LearnerState, variables: Mapping[str, Any]
  ) -> LearnerState:
    """Returns a step's next state with the averages of `ema_variables`.

    Args:
      old: the state before the step.
      new: the state after it, of `update`.
      variables: the variables after the step, by collection.
    """
    if old.average is None or old.average.variables is None:
      return new
    average = moving_average.with_variables(
      old.average,
      new.average,
      self._averaged_variables(variables),
      self._primary.ema_decay,
      self.ema_step_of,
    )
    return new._replace(average=average)

  def ema_of_variables(
    self, state: LearnerState, variables: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Returns non-trainable variables, those of `ema_variables` averaged.

    Args:
      state: the learner's state.
      variables: trees of variables by collection.
    """
    found = dict(variables)
    for name, tree in (state.average.variables or {}).items():
      leaves = by_path(found[name])
      averages = by_path(tree)
      found[name] = replace_leaves(
        found[name], {p: a.astype(leaves[p].dtype) for p, a in averages.items()}
      )
    return found

  def ema_weights(self, state: LearnerState, params: Any) -> Any:
    """Returns the moving averages of the weights.

    Args:
      state: the learner's state.
      params: the weights. Averages are cast to their dtypes; a weight without
        an average is returned itself.

    Raises:
      UserError: no moving average is kept.
    """
    if not self.has_ema:
      raise errors.UserError(
        f'{self._where("optimizer")}: no moving average is kept of the'
        ' weights; expected an ema_decay above 0'
      )
    weights = by_path(params)
    averages = by_path(state.average.ema)
    return replace_leaves(
      params, {p: e.astype(weights[p].dtype) for p, e in averages.items()}
    )

  def _loss_weights(self, groups: Sequence[ParamGroup], weight: Any) -> Arrays:
    """Returns the weight [] of each optimizer's loss, by its name."""
    names = {
      g.name: self.other_losses.get(g.name, self.loss_name) for g in groups
    }
    return {
      group: jnp.asarray(
        weight[loss] if isinstance(weight, Mapping) else weight, jnp.float32
      )
      for group, loss in names.items()
    }

  def _built(self, optimizer: Any) -> optimizers.BaseOptimizer:
    """Returns an optimizer or that of a config; checks its learning rate."""
    built = optimizer
    if isinstance(optimizer, Config):
      built = optimizer.Instantiate()
    elif not isinstance(optimizer, optimizers.BaseOptimizer):
      raise errors.UserError(
        f'{self._where("optimizer")} is {optimizer!r}; expected the config of'
        ' an optimizer, such as optimizers.Adam.config(learning_rate=1e-3)'
      )
    if not self.regularize_before_clipping:
      built.check_one_regularizer()
    built.learning_rate_fn()
    return built

  def named_optimizers(self) -> dict[str, optimizers.BaseOptimizer]:
    """Returns the optimizers by name; the name is '' for the only one."""
    return {'': self._primary}

  @property
  def _optimizer_configs(self) -> list[Config]:
    return [self._optimizer_config]

  def _assigned(self, paths: Collection[str]) -> list[OptimizerPaths]:
    """Returns the paths of the weights of each optimizer, the primary first."""
    return [('', self._primary, paths)]

  def _scaled_together(
    self, groups: Sequence[ParamGroup]
  ) -> list[OptimizerPaths]:
    """Returns the groups of gradients that are scaled together."""
    return [('', self._primary, [p for g in groups for p in g.paths])]

  def _groups(self, weight_metas: WeightMetas) -> list[ParamGroup]:
    """Returns the optimizers with those of their weights that have a state."""
    with_state = self._with_state(weight_metas, weight_metas)
    groups = []
    for name, optimizer, paths in self._assigned(weight_metas):
      own = [path for path in paths if path in with_state]
      transformation = StackedTransformation(
        transformation=optimizer.whole_transformation(),
        prefixes={path: self.stacked_sizes(weight_metas[path]) for path in own},
        all_paths=tuple(weight_metas),
        separator=self.repeat_prefix_sep,
        always_groups=self.force_repeat_prefix_structure,
      )
      groups.append(ParamGroup(name, optimizer, own, transformation))
    return groups

  def _with_state(self, tree: Any, weight_metas: WeightMetas) -> dict[str, Any]:
    """Returns the leaves of weights that have a state, by path."""
    leaves = by_path(
      tree, is_leaf=lambda x: isinstance(x, base_layer.WeightHParams)
    )
    if self.keep_optimizer_state_for_excluded_vars:
      return leaves
    return pick(leaves, self._optimized_paths(weight_metas))

  def _averaged_variables(self, variables) -> dict[str, Any] | None:
    """Returns the variables of `ema_variables`, nested dicts by collection."""
    found = {}
    for name, tree in (variables or {}).items() if self._averaged else ():
      own = {
        path: value
        for path, value in by_path(tree).items()
        if name != base_layer.PARAMS
        and any(
          p.fullmatch(variable_names.full_name(path, name))
          for p in self._averaged
        )
      }
      if own:
        found[name] = as_tree(own)
    return found or None

  def _source_factors(self, paths: Collection[str]) -> Arrays:
    """Returns factors [] of gradients by their batch's source, by path."""
    if not self._by_source:
      return {}
    if self._source is None:
      raise errors.UserError(
        f'{self._where(BY_SOURCE)} is given; expected a step of `of(batch)`'
      )
    return data_sources.factors(self._source, self._by_source, paths)
