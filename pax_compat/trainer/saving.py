"""The action that saves: before evaluations, at intervals, and at the end."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from pax_compat import checkpoints, errors
from pax_compat.metrics import time_use
from pax_compat.processes import process_channel
from pax_compat.runs import files, remote
from pax_compat.trainer.actions import StepContext, evaluation_metadata

# Key in a checkpoint: scalars of the evaluations after its step, on which
# schedules depend. Only if the state was saved before these evaluations.
MEASURED = 'measured'

# How often several processes agree on whether it is time to save, in seconds,
# and the largest number of steps in between.
_SECONDS_BETWEEN_CLOCKS = 20.0
_MAX_STEPS_BETWEEN_CLOCKS = 1000
# How long a process whose evaluation failed waits for the others to fail, too.
_SECONDS_TO_FAIL_TOGETHER = 20.0


class Save:
  """Saves at intervals of steps and of time, and at the end.

  A step that is evaluated and saved is saved first: if the evaluation fails, no
  step is lost. The checkpoint then has the mark that its evaluations are
  pending, and the manifest is updated when these are done. So a run that
  continues from a checkpoint repeats nothing, and leaves nothing out.
  """

  def __init__(
    self,
    checkpointer: checkpoints.Checkpointer,
    *,
    steps: int | None,
    seconds: float | None,
    before: Callable[[], None],
    may_save: Callable[[StepContext], bool] = lambda context: True,
    of_input: Callable[[bytes | None], dict[str, Any]] = lambda state: {},
    print_line: Callable[[str], None] = logging.info,
    spent: time_use.TimeUse | None = None,
  ):
    """Makes the action.

    Args:
      checkpointer: saves.
      steps: interval in steps; None for no interval.
      seconds: the longest time between two saves; None for no limit.
      before: is called before it saves.
      may_save: whether a state may be saved; may raise instead.
      of_input: maps the input state of the step's batch to the training input's
        entry in the checkpoint.
      print_line: prints a line for the user.
      spent: counts the time of the run, and is saved; None for a new one.
    """
    self._checkpointer = checkpointer
    self._spent = spent or time_use.TimeUse()
    self._of_input = of_input
    self._before = before
    self._may_save = may_save
    self._print_line = print_line
    self._steps = steps
    self._clock = _Clock(seconds)
    self._saved: int | None = None  # The step that this action saved last.
    self._refused: int | None = None  # The last one that may not be saved.
    self._asked: tuple[int, bool] | None = None

  def before_first_step(self, context: StepContext, input_state: bytes | None):
    """Saves the initial state.

    Args:
      context: of step 0.
      input_state: state of the training input, of which nothing was read.
    """
    self._save(context, evaluation_metadata(context), input_state)

  def before_measuring(self, context: StepContext):
    """Saves, if a save is due after a step that is evaluated now."""
    if context.is_last_step_of_run or self._is_scheduled(context.step):
      self._save(context, evaluation_metadata(context, pending=True))

  def __call__(self, context: StepContext):
    """Saves a step that was not saved yet, or completes its checkpoint."""
    if self._saved == context.step:
      if not context.evaluations_pending:
        self._checkpointer.amend_later(
          context.step,
          {**outcome(context), time_use.TIME_USE: self._spent.to_save()},
        )
      return
    if context.is_last_step_of_run or self._is_scheduled(context.step):
      self._save(context, evaluation_metadata(context))

  def after_failure(self, context: StepContext, error: BaseException):
    """Saves a step whose evaluation failed, and waits for the commit.

    Of a full disk, which has no room for it, a checkpoint is not begun.

    Args:
      context: of the step.
      error: of the evaluation. The caller raises it; this method does not raise
        anything.
    """
    if not _all_failed(context.step):
      logging.error(
        'step %d is not saved, because its evaluation failed in this process'
        ' only: %s',
        context.step,
        errors.one_line(error),
      )
      return
    if files.is_full_disk(error) and not remote.is_remote(
      self._checkpointer.directory
    ):
      return  # The same disk has no room for a checkpoint.
    try:
      if self._saved != context.step:
        self._save(context, evaluation_metadata(context, pending=True))
      self._checkpointer.wait()
    except Exception as e:  # noqa: BLE001 (the other error is raised)
      logging.error(
        'step %d cannot be saved, either: %s', context.step, errors.one_line(e)
      )
      return
    if self._saved == context.step:
      self._print_line(
        f'the evaluation after step {context.step} failed; the step is saved,'
        ' and the same command goes on with that evaluation'
      )

  def _save(
    self,
    context: StepContext,
    about: dict[str, Any],
    input_state: bytes | None = None,
  ):
    self._clock.restart()
    self._before()
    if self._refused == context.step or not self._may_save(context):
      self._refused = context.step
      return
    if context.batch is not None:
      input_state = context.batch.input_state
    extra = {
      'batches_read': context.step,
      time_use.TIME_USE: self._spent.to_save(),
      **about,
      **self._of_input(input_state),
    }
    with self._spent.of(time_use.SAVING):
      self._checkpointer.save(context.step, context.state, extra)
    self._saved = context.step

  def _is_scheduled(self, step: int) -> bool:
    """Whether a save is due; asked once per step, as processes agree on it."""
    if self._asked is None or self._asked[0] != step:
      due = bool(self._steps) and step % self._steps == 0
      self._asked = step, due or self._clock.is_late(step)
    return self._asked[1]


def outcome(context: StepContext) -> dict[str, Any]:
  """Returns what a checkpoint gets when its step was evaluated."""
  measured = {MEASURED: context.measured} if context.updated_schedules else {}
  return {**evaluation_metadata(context), **measured}


class _Clock:
  """Whether too much time has passed since the last save.

  All processes save at the same step, so the first one's clock decides. Not at
  every step, because the broadcast is a collective.
  """

  def __init__(self, seconds: float | None):
    self._seconds = seconds
    self._asked_at: tuple[int, float] | None = None
    self._next = 0  # The first step at which processes agree again.
    self.restart()

  def restart(self):
    """Counts from now on."""
    self._last = time.monotonic()

  def is_late(self, step: int) -> bool:
    """Returns whether a save is due; all processes ask at the same steps."""
    if self._seconds is None:
      return False
    late = time.monotonic() - self._last >= self._seconds
    if jax.process_count() == 1:
      return late
    if step < self._next:
      return False
    # The first process chooses the number of steps, and its sign.
    wait = self._steps_to_wait(step)
    wait = int(
      multihost_utils.broadcast_one_to_all(np.int32(wait * (-1) ** late))
    )
    self._next = step + abs(wait)
    return wait < 0

  def _steps_to_wait(self, step: int) -> int:
    now = time.monotonic()
    before, self._asked_at = self._asked_at, (step, now)
    if before is None or now <= before[1]:
      return 1
    rate = (step - before[0]) / (now - before[1])
    wanted = min(_SECONDS_BETWEEN_CLOCKS, self._seconds / 10)
    return int(min(max(rate * wanted, 1), _MAX_STEPS_BETWEEN_CLOCKS))


class LeaveUnsaved:
  """Takes the place of `Save` in a run that does not save."""

  def __init__(self, before: Callable[[], None]):
    """Makes the action.

    Args:
      before: is called after the last step.
    """
    self._before = before

  def before_first_step(self, context: StepContext, input_state: bytes | None):
    """Does nothing."""

  def before_measuring(self, context: StepContext):
    """Does nothing."""

  def after_failure(self, context: StepContext, error: BaseException):
    """Does nothing."""

  def __call__(self, context: StepContext):
    if context.is_last_step_of_run:
      self._before()


def _all_failed(step: int) -> bool:
  """Returns whether the evaluation failed in all processes.

  Only then can they save together: one that waits for a failed one in the
  evaluation cannot.
  """
  if jax.process_count() == 1:
    return True
  return process_channel.all_arrive(
    f'failed evaluation {step}', _SECONDS_TO_FAIL_TOGETHER
  )
