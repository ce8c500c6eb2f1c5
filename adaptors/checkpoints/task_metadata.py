"""Checkpoint metadata of translated tasks."""

from collections.abc import Sequence
from typing import Any

from adaptors import lingvo_runtime
from adaptors.checkpoints import slots
from adaptors.checkpoints.metadata import CheckpointMetadata
from adaptors.checkpoints.slots import OptimizerMetadata
from adaptors.equivalents import lingvo_optimizers
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.training import optimizers
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import VariableMap
from pax_compat import errors, learners
from pax_compat import optimizers as pax_optimizers
from pax_compat.config import Config, class_name
from pax_compat.layer_core.task_scopes import scope_of
from pax_compat.learners.multi_optimizer import PRIMARY

_DEFAULT = 'default_optimizer'
# TensorFlow's slot names of the optimizers that Lingvo leaves unnamed.
_NAMES = {
  pax_optimizers.Adagrad: 'Adagrad',
  pax_optimizers.OptaxOptimizer: 'Adadelta',
  pax_optimizers.RmsProp: 'RMSProp',
  pax_optimizers.Sgd: 'Momentum',
}


def of(params: Any, translated: TranslatedTask) -> CheckpointMetadata:
  """Returns the checkpoint metadata of a task.

  Args:
    params: Lingvo's Params of the task, with its input.
    translated: the task in JAX.

  Raises:
    UserError: checkpoints of one of its optimizers are not supported.
  """
  schedule = params.train.ema_schedule
  return CheckpointMetadata(
    variables=translated.variables,
    names=_names(params, translated.variables),
    optimizers=_optimizers(params, translated.config.train.learner),
    defers_steps=params.defer_global_step_update,
    scheduled_decay=None if schedule is None else schedule.ema_decay,
  )


def names_of(params: Any, translated: TranslatedTask) -> CheckpointMetadata:
  """Returns the metadata of a task's variables, without its optimizers."""
  variables = translated.variables
  return CheckpointMetadata(variables, _names(params, variables), ())


def check(params: Any, translated: TranslatedTask):
  """Raises what `of` raises, without the (slow) lookup of variable names."""
  _optimizers(params, translated.config.train.learner)


def of_several(params: Any, translated: TranslatedTask) -> CheckpointMetadata:
  """Returns the checkpoint metadata of a multi-task model.

  Args:
    params: Lingvo's Params of the model; `input` has one input per task.
    translated: the multi-task model in JAX.

  Raises:
    UserError: tasks share a variable, or checkpoints of an optimizer are not
      supported.
  """
  names, found = {}, []
  for task, template in sorted(params.task_params.IterParams()):
    own = template.Copy()
    own.input = params.input.Get(task).Copy()
    scope = f'{task}/' if params.task_name_var_scope else ''
    by_theta = _names(own, VariableMap(), scope)
    shared = sorted(set(by_theta.values()) & set(names.values()))
    if shared:
      raise errors.UserError(
        f'{params.name}: the task {task} shares the variable {shared[0]} with'
        ' another task, which is not supported; expected task_name_var_scope,'
        ' or tasks of different names'
      )
    names |= {f'{task}.{theta}': name for theta, name in by_theta.items()}
    found += _optimizers(
      own,
      translated.config.train.learner.learners[task],
      learner_path=f'opt_state.{task}',
      weights=f'{scope_of(task)}/',
      theta=f'{task}.',
      scope=scope,
    )
  _check_several(params.name, found)
  return CheckpointMetadata(translated.variables, names, tuple(found))


def _names(
  params: Any, variables: VariableMap, scope: str = ''
) -> dict[str, str]:
  names = VariableNames(params, variables, scope).by_theta
  return {theta: name.removesuffix(':0') for theta, name in names.items()}


def _optimizers(
  params: Any,
  learner: Config,
  *,
  learner_path: str = 'opt_state',
  weights: str = '',
  theta: str = '',
  scope: str = '',
) -> tuple[OptimizerMetadata, ...]:
  """Returns the metadata of a task's optimizers; see `OptimizerMetadata`."""
  ours = {'': learner.optimizer}
  if learner.cls is learners.MultiOptimizerLearner:
    auxiliary = zip(
      learner.auxiliary_names, learner.auxiliary_optimizers, strict=True
    )
    ours = {PRIMARY: learner.optimizer, **dict(auxiliary)}
  found = []
  for key, name, theirs in _of_lingvo(params, several=len(ours) > 1):
    # A component of a composite optimizer is left out if it has no weights.
    if key in ours:
      _check(params.name, ours[key], theirs)
      found.append(
        OptimizerMetadata(
          learner_path=learner_path,
          key=key,
          weights=weights,
          theta=theta,
          config=ours[key],
          name=_NAMES.get(optimizers.wrapped(ours[key])[-1].cls, theirs.name),
          scope=scope,
          task=params.name,
          learner=name,
        )
      )
  _check_several(params.name, found)
  return tuple(found)


def _of_lingvo(params: Any, *, several: bool) -> list[tuple[str, str, Any]]:
  """Returns Lingvo's optimizers in the order in which they create their slots.

  Args:
    params: of the task.
    several: whether the learner here has several optimizers.

  Returns:
    A list of (key in our learner, name of the learner in Lingvo, Params of the
    innermost optimizer).
  """
  train = params.train
  given = train.learner
  if isinstance(given, list | tuple) and len(given) > 1:
    keys = [PRIMARY, *(one.name for one in given[1:])]
    return [
      (key, one.name, _innermost(one.optimizer))
      for key, one in zip(keys, given, strict=True)
    ]
  if isinstance(given, list | tuple):
    [given] = given
  name, optimizer = (
    ('loss', train.optimizer)
    if given is None
    else (given.name, given.optimizer)
  )
  composite = lingvo_runtime.module('lingvo.core.optimizer').CompositeOptimizer
  if not issubclass(optimizer.cls, composite):
    return [('', name, _innermost(optimizer))]
  others = [key for key in optimizer.optimizer_map if key != _DEFAULT]
  keys = {_DEFAULT: PRIMARY if several else ''}
  keys |= {key: f'optimizer_{index}' for index, key in enumerate(others)}
  return [
    (keys[key], name, _innermost(one))
    for key, (one, _) in optimizer.optimizer_map.items()
  ]


def _innermost(optimizer: Any) -> Any:
  """Returns the Params of the optimizer that updates the weights."""
  while 'optimizer_tpl' in optimizer:
    optimizer = optimizer.optimizer_tpl
  return optimizer


def _check_several(name: str, found: Sequence[OptimizerMetadata]):
  """Raises a UserError over bridged optimizers whose variables are numbered.

  Lingvo's graph numbers variables of one name that belong to no weight.
  """
  configs = [optimizers.wrapped(one.config)[-1] for one in found]
  by_variables = lingvo_optimizers.ByVariables
  named = [
    one
    for one in configs
    if issubclass(one.cls, by_variables) and one.other_names
  ]
  if len(named) > 1:
    raise errors.UserError(
      f'{name} has several optimizers of your own with variables that belong to'
      f' no weight ({", ".join(named[0].other_names.values())}); checkpoints of'
      ' one such optimizer are supported'
    )


def _check(task: str, ours: Config, theirs: Any):
  """Raises a UserError if an optimizer's checkpoints are not supported."""
  keras = lingvo_runtime.module('lingvo.core.optimizer').AdamV2
  if not slots.is_known(ours) or issubclass(theirs.cls, keras):
    raise errors.UserError(
      f'{task} is trained with {theirs.cls.__name__}, translated to'
      f' {class_name(ours)}; its checkpoints are not supported; expected one'
      f' translated to {", ".join(slots.known())}, and not AdamV2'
    )
