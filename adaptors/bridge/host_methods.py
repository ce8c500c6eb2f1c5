"""Methods of a user's task that Lingvo's trainer calls on the host.

`ProcessFPropResults` is called after each training step, and `DecodeFinalize`
after a dataset is decoded, both on the first process. Lingvo's own classes only
log there; theirs are not called.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from pax_compat import errors

_AFTER_STEP = 'ProcessFPropResults'
_FILTER = 'FilterPerExampleTensors'
_AT_END = 'DecodeFinalize'


class NoSession:
  """Stands for the TensorFlow session, which does not exist here."""

  def __getattr__(self, name: str):
    raise errors.UserError(
      f'{_AFTER_STEP} uses sess.{name}, without a TensorFlow session;'
      ' expected global_step and metrics only'
    )


def check(cls: type, name: str):
  """Raises a UserError if a method needs what a compiled step lacks.

  Args:
    cls: of the task.
    name: of the experiment.
  """
  if _is_users(cls, _AFTER_STEP) and _is_users(cls, _FILTER):
    raise errors.UserError(
      f'{name}: {cls.__module__}.{cls.__qualname__} overrides {_AFTER_STEP} and'
      f' {_FILTER}: training steps of a bridged task have no per-example'
      f' outputs; expected {_AFTER_STEP} of metrics only'
    )


def overridden(cls: type) -> list[str]:
  """Returns the names of the methods here that a user's class overrides."""
  return [name for name in (_AFTER_STEP, _AT_END) if _is_users(cls, name)]


def after_step(lingvo_task: Any) -> Callable[[int, Mapping], None] | None:
  """Returns a function of the step and its metrics; None if there is none.

  Args:
    lingvo_task: a `LingvoTask`.
  """
  if not _is_users(lingvo_task.params.cls, _AFTER_STEP):
    return None

  def call(step: int, metrics: Mapping[str, tuple[Any, Any]]):
    task = lingvo_task.at_training.task
    values = {k: tuple(map(np.asarray, v)) for k, v in metrics.items()}
    _call(task, _AFTER_STEP, NoSession(), step, values, {})

  return call


def after_decoding(
  lingvo_task: Any,
) -> Callable[[pathlib.Path, Sequence], None] | None:
  """Returns a function of a path and all (key, value) pairs of a decoding.

  Args:
    lingvo_task: a `LingvoTask`.
  """
  base = lingvo_runtime.module('lingvo.core.base_model')
  if lingvo_task.params.cls.DecodeFinalize is base.BaseTask.DecodeFinalize:
    return None

  def call(path: pathlib.Path, pairs: Sequence[tuple[str, Any]]):
    task = lingvo_task.decoder.task.task
    _call(task, _AT_END, base.DecodeFinalizeArgs(str(path), list(pairs)))

  return call


def _is_users(cls: type, name: str) -> bool:
  """Whether a class that is not Lingvo's overrides a method."""
  return any(
    name in vars(one) and not one.__module__.startswith('lingvo.')
    for one in cls.__mro__
  )


def _call(task: Any, method: str, *args: Any):
  name = f'{task.params.name}: {type(task).__name__}.{method}'
  with errors.of_user_code(name):
    getattr(task, method)(*args)
