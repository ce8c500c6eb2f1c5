"""Lingvo models of several tasks in JAX: each translated, or else bridged."""

import functools
from typing import Any

from absl import logging

from adaptors.bridge import host_methods, shared_model
from adaptors.bridge import task as bridge_task
from adaptors.translate.tasks import multi_task
from adaptors.translate.tasks.multi_task import TranslatedTasks
from adaptors.translate.view import Issue, class_path
from pax_compat import errors

_SHARES = 'it shares layers with other tasks, which is not translated'
_SHARED_FIELDS = ('encoder_to_share', 'decoder_to_share')


def translate_model(
  params: Any, name: str, translation: str
) -> TranslatedTasks:
  """Returns the tasks of a `MultiTaskModel` as one task in JAX.

  Args:
    params: the model's Params, with an input for each task; not modified.
    name: of the experiment, for messages.
    translation: of each task; see `task.translate`. Tasks that share layers are
      bridged.

  Raises:
    UserError: it is impossible; the message has every reason.
  """
  if not shared_model.is_sharing(params.cls):
    translate = functools.partial(_translate, translation)
    return multi_task.translate_model(params, name, translate)
  _check_sharing(params, name, translation)
  logging.info(
    '%s is bridged, since its tasks share layers: Lingvo computes it inside of'
    ' JAX. Each task has a copy of the shared variables, which are kept equal',
    name,
  )
  return multi_task.translate_model(
    params,
    name,
    functools.partial(_bridge, params),
    ignored=[field for field in _SHARED_FIELDS if field in params],
    tied=_tied,
  )


def route(
  model: Any, task: str, params: Any, name: str, translation: str
) -> bridge_task.Route:
  """Decides how one task of a model runs, as `translate_model` does.

  Args:
    model: the model's Params, with an input for each task; not modified.
    task: the task's name in it.
    params: the task's Params, with its input; not modified.
    name: of the experiment, for messages.
    translation: of the task; see `task.route`.

  Raises:
    UserError: it is impossible; the message has every reason.
  """
  path = f'task_params.{task}'
  if not shared_model.is_sharing(model.cls):
    _check(params, name)
    return bridge_task.route(params, name, translation, path=path)
  _check_sharing(model, name, translation)
  why = Issue(path, class_path(params.cls), _SHARES)
  bridged = _bridge(model, params, name, path=path, scope='')
  return bridge_task.Route(bridge_task.Kind.BRIDGED, bridged, (why,))


def _check_sharing(model, name, translation):
  """Raises a UserError if tasks that share layers may not be bridged."""
  if translation == 'native':
    raise errors.UserError(
      f'{name}: the tasks of a {model.cls.__name__} share layers, which is'
      ' not translated; expected --translation=auto or bridge'
    )


def _translate(translation, params, name, *, path, scope):
  _check(params, name)
  return bridge_task.translate(
    params, name, translation, path=path, scope=scope
  )


def _bridge(model, params, name, *, path, scope):
  _check(params, name)
  task = path.rpartition('.')[2]
  return bridge_task.bridge_task(
    params, name, path=path, scope=scope, model=(model, task)
  )


def _tied(tasks):
  return shared_model.tied(
    {task: one.config.model.lingvo_task for task, one in tasks.items()}
  )


def _check(params: Any, name: str):
  """Raises a UserError if a task has methods that would not be called."""
  found = host_methods.overridden(params.cls)
  if found:
    raise errors.UserError(
      f'{name}: {params.cls.__name__} overrides {", ".join(found)}, which is'
      ' not supported for one task of several'
    )
