"""A Lingvo task in JAX: translated if possible, else bridged.

Lingvo's FProp computes a bridged task. Its training settings are translated as
for other tasks.
"""

import dataclasses
import enum
import re
from collections.abc import Sequence
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import (
  host_methods,
  layer,
  meshes,
  optimizer,
  schedule,
  searching,
  shared_model,
)
from adaptors.bridge.functional import variables as variables_lib
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.bridge.model import BridgedModel
from adaptors.bridge.scoped_variables import jax_path
from adaptors.translate import registry
from adaptors.translate.milan import dual_encoder
from adaptors.translate.tasks import single as task_translation
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.training import train_params
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import (
  Issue,
  ParamsView,
  Report,
  UntranslatedError,
  class_path,
)
from pax_compat import config as config_lib
from pax_compat import errors, tasks_lib
from pax_compat.learners import variable_names

# Methods of a task that Lingvo's trainer calls, and the bridge does not.
_NOT_CALLED = (
  'AdjustGradients',
  'ApplyExponentialMovingAverage',
  'CreateExponentialMovingAverage',
  'FProp',
  '_BPropForVariables',
  '_FPropResult',
  '_FPropSplitInputBatch',
)
# Another one, which Lingvo's own tasks override for summaries only.
_GENERATES = '_BPropGenTrainOps'
# See `Report.bridges`.
_OF_TRAINING = {
  'lingvo.core.optimizer.Base': optimizer.bridge,
  'lingvo.core.schedule.BaseSchedule': schedule.bridge,
}
# Classes whose overrides are translated.
_KNOWN = ('lingvo.tasks.lm.model.LanguageModel',)


class Kind(enum.StrEnum):
  """How a task runs here."""

  NATIVE = 'native'
  PARTLY = 'partly bridged'
  BRIDGED = 'bridged'


@dataclasses.dataclass(frozen=True)
class Route:
  """How a task runs here, and why.

  Attributes:
    kind: the kind of route.
    translated: the task in JAX.
    issues: the reasons why it is not native; empty if it is, or if the bridge
      was asked for.
  """

  kind: Kind
  translated: TranslatedTask
  issues: tuple[Issue, ...] = ()


class NoRouteError(UntranslatedError):
  """A task that can neither be translated nor bridged.

  Attributes:
    not_bridged: why it cannot be bridged.
  """

  def __init__(self, message: str, issues: Sequence[Issue], not_bridged: str):
    super().__init__(message, issues)
    self.not_bridged = not_bridged


def translate(
  params: Any, name: str, translation: str, **place: str
) -> TranslatedTask:
  """Returns a Lingvo task in JAX: that of its `route`."""
  return route(params, name, translation, **place).translated


def route(
  params: Any,
  name: str,
  translation: str,
  *,
  path: str = 'task',
  scope: str = '',
) -> Route:
  """Decides how a Lingvo task runs, for the run and for reports on it.

  Args:
    params: the task's Params, with its input; not modified.
    name: of the experiment, for messages.
    translation: 'native' to translate the whole task; 'bridge' to bridge it;
      'auto' to translate it if possible, else to bridge only components of
      builders without a translation, else to bridge the whole task.
    path: of the task's Params, for messages.
    scope: prefix of Lingvo's variable names, if the task is one of several.

  Raises:
    UserError: it is impossible; the message has every reason.
  """
  place = dict(path=path, scope=scope)
  if translation == 'bridge':
    return Route(Kind.BRIDGED, bridge_task(params, name, **place))
  try:
    native = task_translation.translate_task(params, name, **place)
    return Route(Kind.NATIVE, searching.searched(native, params))
  except Exception as error:  # User code runs here.
    if translation == 'native':
      raise
    reasons = _described(error)
    issues = getattr(error, 'issues', None) or (
      Issue(path, class_path(params.cls), reasons),
    )
  for line in reasons.splitlines():
    logging.info('%s', line)
  try:
    return Route(Kind.PARTLY, bridge_parts(params, name, **place), issues)
  except Exception as error:
    not_by_parts = ' '.join(_described(error).split())[:300]
  logging.info('%s is bridged: Lingvo computes it inside of JAX', name)
  note = f'all of it is bridged, and not some of its layers: {not_by_parts}'
  logging.info('%s: %s', name, note)
  try:
    bridged = bridge_task(params, name, **place)
  except Exception as error:
    reason = _described(error)
    raise NoRouteError(
      f'{reasons}\nIt cannot be bridged: {reason}', issues, reason
    ) from error
  notes = (*bridged.notes, note)
  return Route(Kind.BRIDGED, dataclasses.replace(bridged, notes=notes), issues)


def _described(error: Exception) -> str:
  """Returns an error's message; with its location unless it is a UserError."""
  if isinstance(error, errors.UserError):
    return str(error)
  return errors.with_location(error)


def bridge_parts(params: Any, name: str, **place: str) -> TranslatedTask:
  """Returns a translated Lingvo task with some bridged layers.

  Bridged are components of builders whose classes have no translation.

  Args:
    params: see `translate`.
    name: see `translate`.
    **place: `path` and `scope`, see `translate`.

  Raises:
    UserError: something else has no translation.
  """
  bridged = {}

  def noted(view, translated):
    if translated is not None:
      bridged[view.path] = config_lib.field_values(translated.config)
    return translated

  def bridge_part(view):
    return noted(view, layer.bridge_part(view))

  def bridge_module(view):
    return noted(view, layer.bridge_module(view))

  task = task_translation.translate_task(
    params,
    name,
    bridge_part=bridge_part,
    bridges={**_OF_TRAINING, dual_encoder.IMAGE_MODULE: bridge_module},
    **place,
  )
  for path, fields in bridged.items():
    logging.info(
      '%s: %s (%s) is bridged: Lingvo computes it inside of JAX',
      name,
      path,
      fields['lingvo_layer'],
    )
  return task


def bridge_task(
  params: Any,
  name: str,
  xla_device: str | None = None,
  *,
  path: str = 'task',
  scope: str = '',
  model: Any = None,
) -> TranslatedTask:
  """Returns a bridged Lingvo task: Lingvo computes it inside of JAX.

  Args:
    params: see `translate`.
    name: see `translate`.
    xla_device: of Lingvo's cluster; see `LingvoTask`.
    path: see `translate`.
    scope: see `translate`.
    model: the Params of a `SharedEncoderModel` that builds the task, and the
      task's name in it; None if it is built alone.

  Raises:
    UserError: it cannot be built, or its training settings have no translation.
  """
  _check_class(params, name)
  build = model and shared_model.builder(*model)
  lingvo_task = LingvoTask(params, xla_device, build)
  variables = variable_map(lingvo_task)
  report = Report(bridges=_OF_TRAINING)
  view = ParamsView(params.Copy(), path, report)
  train_view = view.group('train')
  _leave_to_lingvo(train_view)
  trained = variables.only(is_trainable=True)
  names = VariableNames(params, trained, scope, report)
  if model:
    names = shared_model.Names(lingvo_task, trained)
  facts = dataclasses.replace(
    task_translation.facts_of(view, names, variables),
    left_alone=_left_alone(lingvo_task),
    may_have_others=True,
    looked_up=_looked_up(lingvo_task),
  )
  try:
    train = train_params.train(train_view, facts)
    steps = train_params.batches_per_step(train_view, facts.defers_steps)
  except Exception as error:
    if not report.issues:
      train_view.issue('', registry.unreadable(error))
  # One task of several is data-parallel.
  mesh = meshes.model_fields(view) if path == 'task' else {}
  if report.issues:
    raise UntranslatedError(
      task_translation.describe(name, report), report.issues
    )
  report.log(name)
  model = BridgedModel.config(
    **mesh,
    lingvo_task=lingvo_task,
    loss_names=_losses(lingvo_task, variables, train.config.learner),
    batches_per_step=(steps.numerator, steps.denominator),
  )
  return TranslatedTask(
    config=tasks_lib.SingleTask.config(
      name=name, model=model, train=train.config
    ),
    variables=variables,
    notes=tuple(report.notes),
    early_stop=train.early_stop,
    early_stop_job=train.early_stop_job,
  )


def _losses(
  lingvo_task: LingvoTask, variables: VariableMap, learner: config_lib.Config
) -> tuple[str, ...]:
  """Returns the losses of a learner, the task's first.

  Args:
    lingvo_task: is given the losses of variables with another one.
    variables: of the task.
    learner: the learner's config.
  """
  first = config_lib.field_values(learner)['loss_name'] or 'loss'
  patterns = getattr(learner, 'auxiliary_regex', ())
  names = getattr(learner, 'auxiliary_loss_names', ())
  for pattern, loss in zip(patterns, names, strict=False):
    for variable in variables:
      name = variable_names.full_name(variable.jax)
      if loss != first and re.match(pattern, name):
        lingvo_task.loss_of[variable.theta[0]] = loss
  return tuple(dict.fromkeys((first, *names)))


def variable_map(lingvo_task: LingvoTask) -> VariableMap:
  """Returns the map of a task's variables; their values are identical."""
  found = VariableMap(
    layer.variable_of(theta, variable)
    for theta, variable in lingvo_task.at_training.variables.items()
  )
  paths = [v.jax for v in found]
  twice = sorted({path for path in paths if paths.count(path) > 1})
  if twice:
    raise errors.UserError(
      f'{lingvo_task}: several variables map to {", ".join(twice)}; expected'
      ' theta paths that differ in more than . [ ]'
    )
  return found


def _left_alone(lingvo_task: LingvoTask) -> frozenset[str]:
  """Returns the paths of weights that the task's own `BProp` does not train.

  Raises:
    UserError: it does more than to select weights.
  """
  base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
  if lingvo_task.params.cls.BProp is base.BProp:
    return frozenset()
  task = lingvo_task.at_training
  left = set(task.trained) - task.trained_by_bprop()
  return frozenset(map(jax_path, left))


def _looked_up(lingvo_task: LingvoTask) -> frozenset[str]:
  """Returns the paths of the tables of Lingvo's own layers for lookups."""
  layers = lingvo_runtime.module('lingvo.core.layers')
  task = lingvo_task.at_training.task
  tables = set()
  for one in variables_lib.layers_of(task):
    gathers = type(one) is layers.EmbeddingLayer or (
      type(one) is layers.SimpleEmbeddingLayer
      and one.params.fprop_mode == 'gather'
    )
    if gathers:
      tables |= {id(variable) for variable in one.vars.Flatten()}
  found = lingvo_task.at_training.variables
  return frozenset(jax_path(p) for p, v in found.items() if id(v) in tables)


def _check_class(params: Any, name: str):
  """Raises a UserError if a task overrides how it is trained."""
  base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
  for cls in params.cls.__mro__[: params.cls.__mro__.index(base)]:
    path = f'{cls.__module__}.{cls.__qualname__}'
    changed = set(_NOT_CALLED) & set(vars(cls))
    if _GENERATES in vars(cls) and not path.startswith('lingvo.'):
      changed.add(_GENERATES)
    if changed and path not in _KNOWN:
      raise errors.UserError(
        f'{name}: {path} overrides {", ".join(sorted(changed))}, which a'
        ' bridged task must not; expected overrides of FPropTower,'
        ' ComputePredictions or ComputeLoss, and training settings in Params'
      )
  host_methods.check(params.cls, name)


def _leave_to_lingvo(train: ParamsView):
  """Marks the fields of `train` as read that Lingvo's FProp uses.

  These are variational noise, and fields that a class has added.
  """
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  common = base_model.BaseTask.Params().train
  for name, _ in train.params.IterParams():
    if name not in common or name in ('vn_std', 'vn_start_step'):
      train.get(name)
