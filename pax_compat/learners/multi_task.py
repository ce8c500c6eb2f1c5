"""A learner of several tasks, with a separate learner for each."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.layer_core.task_scopes import scope_of
from pax_compat.learners import variable_names
from pax_compat.learners.learner import Learner, LearnerState, WeightMetas

States = dict[str, LearnerState]


class MultiTaskLearner(config_lib.Configurable):
  """Trains the task of the batch, of a `layers.MultiTaskModel`.

  The other tasks make a no-op step: their weights and the moments of their
  optimizers do not change, and they are not regularized. But their step counts
  go on: learning rates, and the decay of young moving averages, depend on the
  steps of the run, whichever task they train. (An invalid step that a task's
  learner skips counts for the others only.)

  A learner's expressions match the names that weights have in the task alone.
  Its metrics are named `<task>/<name>`.

  Attributes:
    name: name of the learner in messages.
    learners: config of each task's `Learner`, by the task's name.
    loss_name: must be None: the loss is that of the batch's task.
    tied: groups of names of variables that have the same value; see
      `layers.MultiTaskModel`. A step of one task changes those of the others,
      and their moving averages.

  Raises:
    UserError: `loss_name` is set, or that of a task's learner is not `loss`; an
      optimizer does not support no-op steps; or only some of the learners keep
      moving averages.
  """

  name: str = 'learner'
  learners: Mapping[str, Config] = REQUIRED
  loss_name: str | None = None
  tied: Sequence[Sequence[str]] = ()

  stochastic_gradient = None

  def __post_init__(self):
    self._learners: dict[str, Learner] = {
      task: config.Instantiate() for task, config in self.learners.items()
    }
    losses = {task: one.loss_name for task, one in self._learners.items()}
    for where, loss in {'': self.loss_name, **losses}.items():
      if loss not in ({None, 'loss'} if where else {None}):
        raise errors.UserError(
          f'{self.name}: loss_name{" of the task " + where if where else ""} is'
          f" {loss!r}; tasks are trained by their metric 'loss'; leave it None"
        )
    for task, one in self._learners.items():
      if one.other_losses:
        raise errors.UserError(
          f'{self.name}: the task {task} has optimizers of the losses'
          f' {", ".join(one.other_losses.values())}; one of several tasks is'
          " trained by its metric 'loss' only"
        )
      one.check_supports_no_op_steps()
      if one.stochastic_gradient is not None:
        raise errors.UserError(
          f'{self.name}: stochastic_gradient of the task {task} is'
          f' {type(one.stochastic_gradient).__name__}, which several tasks do'
          ' not support; leave it None'
        )
    averaged = [task for task, one in self._learners.items() if one.has_ema]
    if averaged and len(averaged) < len(self._learners):
      raise errors.UserError(
        f'{self.name}: of the tasks {", ".join(self._learners)} only'
        f' {", ".join(averaged)} keep moving averages of weights; expected an'
        ' ema_decay above 0 for all of them or for none'
      )

  @property
  def has_ema(self) -> bool:
    """Whether the learners keep moving averages of the weights."""
    return all(one.has_ema for one in self._learners.values())

  def check_names(self, names: Collection[str]):
    """See `Learner.check_names`; each weight must have a learner."""
    left = set(names)
    for task, one in self._learners.items():
      own = {
        '/'.join((collection, rest.removeprefix(f'{scope_of(task)}/'))): name
        for name in names
        for collection, _, rest in [name.partition('/')]
        if rest.startswith(f'{scope_of(task)}/')
      }
      if not own:
        raise errors.UserError(
          f'{self.name}: MultiTaskLearner.learners has the task {task!r},'
          ' but the model has no weights of that task'
        )
      one.check_names(own)
      left -= set(own.values())
    if left:
      raise errors.UserError(
        f'{self.name}: the weight {min(left)} belongs to none of the tasks'
        f' of MultiTaskLearner.learners: {", ".join(self.learners)}'
      )

  def init(
    self,
    params: Any,
    *,
    weight_metas: WeightMetas,
    variables: Mapping[str, Any] | None = None,
  ) -> States:
    """Returns the initial state of each task; see `Learner.init`."""
    return self._states(Learner.init, params, weight_metas, variables)

  def abstract_state(
    self,
    params: Any,
    *,
    weight_metas: WeightMetas,
    variables: Mapping[str, Any] | None = None,
  ) -> States:
    """Returns the abstract state of each task; see `Learner`."""
    return self._states(Learner.abstract_state, params, weight_metas, variables)

  def _states(
    self,
    state_of: Callable,
    params: Any,
    weight_metas: WeightMetas,
    variables: Mapping[str, Any] | None,
  ) -> States:
    return {
      task: state_of(
        one,
        params[scope_of(task)],
        weight_metas=_below(task, weight_metas),
        variables=_of_task(task, variables),
      )
      for task, one in self._learners.items()
    }

  def ema_weights(self, state: States, params: Any) -> Any:
    """Returns the moving averages of the weights; see `Learner`."""
    return {
      scope_of(task): one.ema_weights(state[task], params[scope_of(task)])
      for task, one in self._learners.items()
    }

  def after_evaluations(
    self, state: States, step: int, measured: Mapping[str, Mapping[str, float]]
  ) -> States:
    """Returns the state of each task after evaluations; see `Learner`."""
    return {
      task: one.after_evaluations(state[task], step, measured)
      for task, one in self._learners.items()
    }

  def ema_of_variables(
    self, state: States, variables: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Returns the variables, some of them averaged; see `Learner`."""
    found = {name: dict(tree) for name, tree in variables.items()}
    for task, one in self._learners.items():
      own = one.ema_of_variables(state[task], _of_task(task, variables))
      for name, tree in own.items():
        found[name][scope_of(task)] = tree
    return found

  def of(self, batch: Mapping[str, Any]) -> '_OneTaskLearner':
    """Returns the learner that makes the step on a batch of one task."""
    [(task, own)] = batch.items()
    trained = self._learners[task].of(own)
    return _OneTaskLearner(self._learners | {task: trained}, task, self.tied)


@dataclasses.dataclass(frozen=True)
class _OneTaskLearner:
  """Makes steps of one task, and no-op steps of the others.

  Attributes:
    learners: the learners of all tasks.
    task: the task that is trained.
    tied: see `MultiTaskLearner`.
  """

  learners: Mapping[str, Learner]
  task: str
  tied: Sequence[Sequence[str]] = ()

  stochastic_gradient = None

  def update(
    self,
    params: Any,
    state: States,
    gradients: Any,
    *,
    weight_metas: WeightMetas,
    row_statistics: Mapping[str, RowStatistics] | None = None,
    loss_weight: jax.Array | float = 1.0,
    with_norms: jax.Array | bool = True,
    other_norms: Callable[[], dict[str, jax.Array]] = dict,
  ) -> tuple[Any, States, dict[str, jax.Array], dict[str, jax.Array]]:
    """Makes a step on the weights of all tasks; see `Learner.update`."""
    scope = scope_of(self.task)
    new_params, new_state, metrics, norms = self.learners[self.task].update(
      params[scope],
      state[self.task],
      gradients[scope],
      weight_metas=_below(self.task, weight_metas),
      row_statistics=_below(self.task, row_statistics or {}),
      loss_weight=loss_weight,
      with_norms=with_norms,
      other_norms=other_norms,
    )
    idle = {
      task: one.no_op_step(state[task], weight_metas=_below(task, weight_metas))
      for task, one in self.learners.items()
      if task != self.task
    }
    others = jax.eval_shape(other_norms)
    states = self._tied_averages({**idle, self.task: new_state})
    return (
      self._tied_to({**params, scope: new_params}, base_layer.PARAMS),
      states,
      {f'{self.task}/{name}': value for name, value in metrics.items()},
      {
        name if name in others else f'{self.task}/{name}': value
        for name, value in norms.items()
      },
    )

  def losses_of(self, weight_metas: WeightMetas) -> dict[str, str]:
    """Returns nothing: all weights have the loss of the batch's task."""
    return {}

  def next_averages(
    self, old: States, new: States, variables: Mapping[str, Any]
  ) -> States:
    """Returns the next states with all averages; see `Learner`."""
    task = self.task
    own = self.learners[task].next_averages(
      old[task], new[task], _of_task(task, variables)
    )
    return {**new, task: own}

  def next_variables(
    self,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    metrics: Mapping[str, jax.Array],
  ) -> dict[str, Any]:
    """Returns the next variables of all tasks; see `Learner`."""
    scope = scope_of(self.task)
    own = self.learners[self.task].next_variables(
      _of_task(self.task, old),
      _of_task(self.task, new),
      {name.removeprefix(f'{self.task}/'): v for name, v in metrics.items()},
    )
    # The other tasks' models may have counted the step.
    result = {
      name: {**tree, **({scope: own[name]} if name in own else {})}
      for name, tree in new.items()
    }
    return {name: self._tied_to(tree, name) for name, tree in result.items()}

  def _tied_to(self, tree: Any, collection: str) -> Any:
    """Returns variables of all tasks, those tied to the task's like them."""
    leaves = variable_names.by_path(tree) if self.tied else {}
    copied = {
      path: leaves[own]
      for own, path in self._copies(collection)
      if own in leaves and path in leaves
    }
    return variable_names.replace_leaves(tree, copied) if copied else tree

  def _tied_averages(self, states: States) -> States:
    """Returns states whose tied averages are those of the task."""
    own = states[self.task].average
    if own is None or not self.tied:
      return states
    averages = {scope_of(task): one.average.ema for task, one in states.items()}
    averages = self._tied_to(averages, base_layer.PARAMS)
    return {
      task: one._replace(
        average=one.average._replace(ema=averages[scope_of(task)])
      )
      for task, one in states.items()
    }

  def _copies(self, collection: str) -> Iterator[tuple[str, str]]:
    """Yields paths of the task's variables, and of those tied to them."""
    prefix = f'{collection}/{scope_of(self.task)}/'
    for group in self.tied:
      for own in group:
        if own.startswith(prefix):
          for name in group:
            if name != own:
              yield tuple(x.removeprefix(f'{collection}/') for x in (own, name))


def _of_task(task: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
  """Returns a task's trees of variables by collection."""
  scope = scope_of(task)
  return {
    k: tree[scope] for k, tree in (variables or {}).items() if scope in tree
  }


def _below(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values of a task's weights, by path in the task."""
  prefix = f'{scope_of(task)}/'
  return {
    path.removeprefix(prefix): value
    for path, value in values.items()
    if path.startswith(prefix)
  }
