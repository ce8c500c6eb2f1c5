"""Checkpoint metadata of translated tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from adaptors import lingvo_runtime
from adaptors.bridge import shared_model
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
  pax_optimizers.Graft: 'AdaGraft',
  pax_optimizers.OptaxOptimizer: 'Adadelta',
  pax_optimizers.RmsProp: 'RMSProp',
  pax_optimizers.Sgd: 'Momentum',
  pax_optimizers.Shampoo: 'DistributedShampoo',
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
  found = _optimizers(params, translated.config.train.learner)
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  model = base_model.SingleTaskModel.Params(params.Copy())
  return CheckpointMetadata(
    variables=translated.variables,
    names=_names(params, translated.variables),
    optimizers=_in_graph(model, found),
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
    UserError: tasks have variables of the same name although they do not share
      layers, or checkpoints of an optimizer are not supported.
  """
  names, found = {}, []
  is_sharing = shared_model.is_sharing(params.cls)
  for task, template in sorted(params.task_params.IterParams()):
    own = template.Copy()
    own.input = params.input.Get(task).Copy()
    scope = f'{task}/' if params.task_name_var_scope else ''
    if is_sharing:
      model = translated.config.model.tasks[task]
      sharing = shared_model.Names(model.lingvo_task, translated.variables)
      by_theta = _without_output(sharing.by_theta)
    else:
      by_theta = _names(own, VariableMap(), scope)
    shared = sorted(set(by_theta.values()) & set(names.values()))
    if shared and not is_sharing:
      raise errors.UserError(
        f'{params.name}: the task {task} has a variable {shared[0]}, as another'
        ' task has, and Lingvo cannot build a model of both; expected'
        ' task_name_var_scope, or tasks of different names'
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
  found = _in_graph(params.Copy(), found)
  return CheckpointMetadata(translated.variables, names, found)


def _names(
  params: Any, variables: VariableMap, scope: str = ''
) -> dict[str, str]:
  names = VariableNames(params, variables, scope).by_theta
  return _without_output(names)


def _without_output(names: Mapping[str, str]) -> dict[str, str]:
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
  given = params.train.learner
  several = given if isinstance(given, list | tuple) else []
  indices = {one.name: index for index, one in enumerate(several)}
  found = []
  for key, name, theirs in _of_lingvo(params, several=len(ours) > 1):
    # A component of a composite optimizer is left out if it has no weights.
    if key in ours:
      _check(params.name, ours[key], theirs)
      whole = OptimizerMetadata(
        learner_path=learner_path,
        key=key,
        weights=weights,
        theta=theta,
        config=ours[key],
        name=_NAMES.get(optimizers.wrapped(ours[key])[-1].cls, theirs.name),
        scope=scope,
        task=params.name,
        learner=name,
        index=indices.get(name, 0),
        keras_scope=f'{theirs.name}/' if _is_of_keras(theirs) else '',
      )
      found += _with_parts(whole, theirs)
  _check_several(params.name, found)
  return tuple(found)


def _with_parts(
  whole: OptimizerMetadata, theirs: Any
) -> list[OptimizerMetadata]:
  """Returns an optimizer, and the components of one that is grafted.

  Args:
    whole: the optimizer.
    theirs: Params of Lingvo's.
  """
  if whole.kind is not pax_optimizers.Graft:
    return [whole]
  last = optimizers.wrapped(whole.config)[-1]
  magnitude, direction = (
    dataclasses.replace(
      whole,
      config=config,
      name=_NAMES.get(optimizers.wrapped(config)[-1].cls, made.params.name),
      part=part,
    )
    for part, config, made in (
      (slots.MAGNITUDE, last.magnitude_tpl, theirs.magnitude_optimizer),
      (slots.DIRECTION, last.direction_tpl, theirs.direction_optimizer),
    )
  )
  if magnitude.name == direction.name:
    before = len(magnitude.slots)
    direction = dataclasses.replace(direction, number=before)
  whole = dataclasses.replace(whole, is_diagnostic=theirs.diagnostic)
  return [whole, magnitude, direction]


def _is_of_keras(theirs: Any) -> bool:
  """Whether Lingvo's optimizer is of Keras."""
  keras = lingvo_runtime.module('lingvo.core.optimizer').AdamV2
  return issubclass(theirs.cls, keras)


def _in_graph(
  model: Any, found: Sequence[OptimizerMetadata]
) -> tuple[OptimizerMetadata, ...]:
  """Returns optimizers with the scopes that Keras' get in Lingvo's graph.

  A graph numbers scopes of one name, also those of layers for optimizers.
  """
  if not any(one.keras_scope for one in found):
    return tuple(found)
  tf = lingvo_runtime.module('lingvo.compat')
  result = []
  with (
    lingvo_runtime.eager_flag(False),
    tf.Graph().as_default() as graph,
    lingvo_runtime.cluster(),
  ):
    model.Instantiate()
    for one in found:
      # Accumulators update in the graph of a conditional.
      if one.keras_scope and not optimizers.accumulates(one.config):
        scope = f'{graph.unique_name(one.name)}/'
        one = dataclasses.replace(one, keras_scope=scope)
      result.append(one)
  return tuple(result)


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
  """Raises a UserError over optimizers whose variables are numbered.

  Lingvo's graph numbers variables of one name that belong to no weight.
  """
  if len(found) > 1 and any(
    one.keras_scope and optimizers.accumulates(one.config) for one in found
  ):
    raise errors.UserError(
      f'{name} has several optimizers, of which one accumulates gradients for'
      ' AdamV2; checkpoints of one such optimizer are supported'
    )
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
  why = ''
  if optimizers.has(ours, pax_optimizers.Graft):
    parts = theirs.magnitude_optimizer, theirs.direction_optimizer
    if any(_is_of_keras(one.params) for one in parts):
      why = ', since AdamV2 does not work within it'
    elif not slots.is_known(ours):
      why = (
        ', since one of its two optimizers is a Graft, Shampoo or Adafactor, or'
        ' neither has state'
      )
  if why or not slots.is_known(ours):
    raise errors.UserError(
      f'{task} is trained with {theirs.cls.__name__}, translated to'
      f' {class_name(ours)}; its checkpoints are not supported{why}; expected'
      f' one translated to {", ".join(slots.known())}'
    )
