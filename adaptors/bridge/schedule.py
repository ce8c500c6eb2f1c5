"""A user's own learning-rate schedule: Lingvo's `Value` inside of JAX."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

from adaptors import lingvo_runtime
from adaptors.bridge import calling, optimizer
from adaptors.bridge.ops import compilable
from adaptors.translate.view import ParamsView, class_path
from pax_compat import errors, schedules
from pax_compat.config import REQUIRED, Config


class LingvoSchedule:
  """A Lingvo schedule, built when it is needed; copying returns the same.

  Attributes:
    params: of the schedule.
  """

  def __init__(self, params: Any):
    self.params = params.Copy()

  def __repr__(self):
    return f'LingvoSchedule({class_path(self.params.cls)})'

  def __deepcopy__(self, memo):
    return self

  @functools.cached_property
  def value_at(self) -> Callable:
    """The function from a step [], int32, to a value [], float32.

    It takes and returns tensors, and XLA can compile it.

    Raises:
      UserError: the schedule cannot be built, or has variables; if it is
        traced, XLA cannot compile it.
    """
    with self._in_lingvo():
      schedule = self.params.Copy().Instantiate()
    if schedule.vars.Flatten():
      raise errors.UserError(
        'it has variables, and a bridged schedule depends on the step only'
      )
    return compilable.compilable(functools.partial(self._value, schedule))

  def check(self):
    """Traces the function.

    Raises:
      UserError: see `value_at`; or it needs more than the step.
    """
    tf = lingvo_runtime.module('tensorflow')
    traced = tf.function(self.value_at, autograph=False).get_concrete_function(
      tf.TensorSpec([], tf.int32)
    )
    if any(x.dtype == tf.resource for x in traced.captured_inputs):
      raise errors.UserError(
        'it reads variables, and a bridged schedule depends on the step only'
      )

  def _value(self, schedule: Any, step: Any) -> Any:
    tf = lingvo_runtime.module('tensorflow')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    with (
      self._in_lingvo(),
      py_utils.GlobalStepContext(tf.cast(step, tf.int64)),
    ):
      return tf.reshape(tf.cast(schedule.Value(), tf.float32), [])

  @contextlib.contextmanager
  def _in_lingvo(self) -> Iterator[None]:
    """The contexts in which schedules are built and called."""
    with lingvo_runtime.eager_flag(True), lingvo_runtime.cluster():
      yield


class BridgedSchedule(schedules.BaseSchedule):
  """A Lingvo schedule, compiled into the training step by TensorFlow.

  Attributes:
    lingvo_schedule: a `LingvoSchedule`.
  """

  lingvo_schedule: Any = REQUIRED

  def value_at(self, count):
    value_at = calling.in_jax(self.lingvo_schedule.value_at)
    return value_at(jnp.asarray(count, jnp.int32))


def bridge(view: ParamsView) -> Config | None:
  """Returns the config of a schedule without a translation.

  Args:
    view: its Params; all of them are read by Lingvo.

  Returns:
    None after an issue, if it cannot be bridged.
  """
  for name, _ in view.params.IterParams():
    view.get(name)
  schedule = LingvoSchedule(view.params)
  try:
    schedule.check()
  except Exception as error:
    view.issue('', optimizer.not_bridged(view.params.cls, error))
    return None
  view.report.notes.append(
    f'{view.path} ({view.class_path}) is bridged: TensorFlow computes its Value'
    ' inside of the step'
  )
  return BridgedSchedule.config(lingvo_schedule=schedule)
