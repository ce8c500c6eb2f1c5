"""What a translated task says of the names in its checkpoints."""

from typing import Any

from adaptors import lingvo_runtime
from adaptors.checkpoints import slots
from adaptors.checkpoints.facts import Facts
from adaptors.checkpoints.slots import OptimizerFacts
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
# What those are called in TensorFlow that Lingvo gives no name to.
_NAMES = {
  pax_optimizers.Adagrad: 'Adagrad',
  pax_optimizers.OptaxOptimizer: 'Adadelta',
  pax_optimizers.RmsProp: 'RMSProp',
  pax_optimizers.Sgd: 'Momentum',
}


def of(params: Any, translated: TranslatedTask) -> Facts:
  """Returns the facts of a task.

  Args:
    params: Lingvo's Params of the task, with its input.
    translated: the task in JAX.

  Raises:
    UserError: it is trained in a way whose checkpoints are not supported.
  """
  schedule = params.train.ema_schedule
  return Facts(
    variables=translated.variables,
    names=_names(params, translated.variables),
    optimizers=_optimizers(params, translated.config.train.learner),
    defers_steps=params.defer_global_step_update,
    scheduled_decay=None if schedule is None else schedule.ema_decay,
  )


def check(params: Any, translated: TranslatedTask):
  """Raises what `of` does, without asking for names, which takes its time."""
  _optimizers(params, translated.config.train.learner)


def of_several(params: Any, translated: TranslatedTask) -> Facts:
  """Returns the facts of a model of several tasks.

  Args:
    params: Lingvo's Params of the model, whose `input` has one of each task.
    translated: all tasks as one in JAX.

  Raises:
    UserError: a task is trained in a way whose checkpoints are not supported.
  """
  names, found = {}, []
  for task, template in sorted(params.task_params.IterParams()):
    own = template.Copy()
    own.input = params.input.Get(task).Copy()
    scope = f'{task}/' if params.task_name_var_scope else ''
    told = _names(own, VariableMap(), scope)
    shared = sorted(set(told.values()) & set(names.values()))
    if shared:
      raise errors.UserError(
        f'{params.name}: the task {task} has the variable {shared[0]} together'
        ' with another task, and tasks share none here; expected'
        ' task_name_var_scope, or tasks of different names'
      )
    names |= {f'{task}.{theta}': name for theta, name in told.items()}
    found += _optimizers(
      own,
      translated.config.train.learner.learners[task],
      learner_path=f'opt_state.{task}',
      weights=f'{scope_of(task)}/',
      theta=f'{task}.',
      scope=scope,
    )
  return Facts(translated.variables, names, tuple(found))


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
) -> tuple[OptimizerFacts, ...]:
  """Returns facts of the optimizers of a task; see `OptimizerFacts`."""
  ours = {'': learner.optimizer}
  if learner.cls is learners.MultiOptimizerLearner:
    auxiliary = zip(
      learner.auxiliary_names, learner.auxiliary_optimizers, strict=True
    )
    ours = {PRIMARY: learner.optimizer, **dict(auxiliary)}
  found = []
  for part, name, theirs in _of_lingvo(params, several=len(ours) > 1):
    # One of a composite optimizer may have no weights, and is not there then.
    if part in ours:
      _check(params.name, ours[part], theirs)
      found.append(
        OptimizerFacts(
          learner_path=learner_path,
          part=part,
          weights=weights,
          theta=theta,
          config=ours[part],
          name=_NAMES.get(optimizers.wrapped(ours[part])[-1].cls, theirs.name),
          scope=scope,
          task=params.name,
          learner=name,
        )
      )
  return tuple(found)


def _of_lingvo(params: Any, *, several: bool) -> list[tuple[str, str, Any]]:
  """Returns Lingvo's optimizers in the order in which they make their slots.

  Args:
    params: of the task.
    several: whether the learner here has several optimizers.

  Returns:
    Of each what our learner calls it, the name of its learner in Lingvo, and
    its Params, without others around them.
  """
  train = params.train
  given = train.learner
  if isinstance(given, list | tuple) and len(given) > 1:
    parts = [PRIMARY, *(one.name for one in given[1:])]
    return [
      (part, one.name, _innermost(one.optimizer))
      for part, one in zip(parts, given, strict=True)
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
  parts = {_DEFAULT: PRIMARY if several else ''}
  parts |= {key: f'optimizer_{index}' for index, key in enumerate(others)}
  return [
    (parts[key], name, _innermost(one))
    for key, (one, _) in optimizer.optimizer_map.items()
  ]


def _innermost(optimizer: Any) -> Any:
  """Returns Params of the optimizer that moves the weights."""
  while 'optimizer_tpl' in optimizer:
    optimizer = optimizer.optimizer_tpl
  return optimizer


def _check(task: str, ours: Config, theirs: Any):
  """Raises a UserError over an optimizer whose checkpoints are not known."""
  keras = lingvo_runtime.module('lingvo.core.optimizer').AdamV2
  if not slots.is_known(ours) or issubclass(theirs.cls, keras):
    raise errors.UserError(
      f'{task} is trained by {theirs.cls.__name__}, which is'
      f' {class_name(ours)} here and whose checkpoints are not supported;'
      f' expected one that is {", ".join(slots.known())} here, AdamV2 excluded'
    )
