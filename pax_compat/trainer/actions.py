"""What happens every so often while a task is trained.

An action is asked after each step whether it is due, and then runs. The loop
knows none of them by name.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import checkpoints, metric_writers
from pax_compat import progress as progress_lib
from pax_compat.trainer import evaluation, feeding, program

# Says in a checkpoint whether evaluations of its step were put off.
EVALUATIONS_DUE = 'evaluations_due'

# How often several processes agree on whether it is time to save.
_STEPS_BETWEEN_CLOCKS = 50


@dataclasses.dataclass
class Moment:
  """Where a run stands after a step.

  Attributes:
    step: steps that were made, this one included.
    is_last: whether the task's last step was made.
    is_stopping: whether the run ends here although it was not the last.
    state: the state after the step.
    metrics: the step's metrics, on the devices, perhaps not yet computed.
    fed: the batch that the step saw.
  """

  step: int
  is_last: bool
  is_stopping: bool
  state: program.TrainState
  metrics: dict[str, Any]
  fed: feeding.FedBatch

  @property
  def ends(self) -> bool:
    """Whether no step follows in this run."""
    return self.is_last or self.is_stopping


class Action(Protocol):
  """Something that happens every so often."""

  def __call__(self, moment: Moment):
    """Is called after every step; acts when it is due."""


class Report:
  """Counts every step, and says how the run goes every `every` steps.

  It looks at a step when the next one is on its way, so that the devices never
  wait for it.
  """

  def __init__(
    self,
    *,
    every: int,
    loss_name: str,
    progress: progress_lib.Progress,
    writer: metric_writers.MetricWriter,
    say: Callable[[str], None],
  ):
    self._every = every
    self._loss_name = loss_name
    self._progress = progress
    self._writer = writer
    self._say = say
    self._held: Moment | None = None
    self._is_first = True

  def __call__(self, moment: Moment):
    self.flush()
    # Without the state, which the next step takes over.
    self._held = dataclasses.replace(moment, state=None)
    if moment.ends:
      self.flush()

  def flush(self):
    """Looks at the last step now, without waiting for the next one."""
    if self._held is not None:
      self._look_at(self._held)
      self._held = None

  def _look_at(self, moment: Moment):
    due = self._is_first or moment.ends or moment.step % self._every == 0
    self._progress.count_step(
      tokens=moment.fed.tokens * jax.process_count(),
      input_wait=moment.fed.wait_seconds,
    )
    if not due:
      return
    metrics = {k: float(v) for k, v in jax.device_get(moment.metrics).items()}
    loss = metrics[self._loss_name]
    self._progress.know_loss(loss)
    line, rates = self._progress.report()
    if self._is_first:
      # Most of its time was compilation, which says nothing about the others.
      line, rates = f'step {moment.step}  loss {loss:.4g}', {}
      self._is_first = False
    self._writer.write_scalars(moment.step, 'train', {**metrics, **rates})
    self._say(line)


class Save:
  """Saves every `steps` steps or `seconds` seconds, and at the end.

  It comes after everything else of a step, so that what a checkpoint promises
  to be done is done, and a run that continues from it repeats nothing.
  """

  def __init__(
    self,
    checkpointer: checkpoints.Checkpointer,
    *,
    steps: int | None,
    seconds: float | None,
    before: Callable[[], None],
  ):
    self._checkpointer = checkpointer
    self._before = before
    self._steps = steps
    self._seconds = seconds
    self._last = time.monotonic()

  def __call__(self, moment: Moment):
    if not (moment.ends or self._due(moment.step)):
      return
    self._last = time.monotonic()
    self._before()
    self._checkpointer.save(
      moment.step,
      moment.state,
      {'batches_read': moment.step, EVALUATIONS_DUE: moment.is_stopping},
    )

  def _due(self, step: int) -> bool:
    if self._steps:
      return step % self._steps == 0
    if self._seconds is None:
      return False
    late = time.monotonic() - self._last >= self._seconds
    if jax.process_count() == 1:
      return late
    # All processes must save at the same step: the first one's clock decides,
    # asked now and then only, because asking is a collective.
    if step % _STEPS_BETWEEN_CLOCKS:
      return False
    return bool(multihost_utils.broadcast_one_to_all(np.int32(late)))


class Evaluate:
  """Evaluates some datasets every `every` steps, and all of them at the end."""

  def __init__(
    self,
    data: dict[str, Any],
    *,
    every: int,
    during: tuple[str, ...] | None,
    task_program: program.TaskProgram,
    put,
    writer: metric_writers.MetricWriter,
    progress: progress_lib.Progress,
    before: Callable[[], None],
    say: Callable[[str], None],
  ):
    self._data = data
    self._every = every
    self._during = tuple(data) if during is None else during
    self._program = task_program
    self._put = put
    self._writer = writer
    self._progress = progress
    self._before = before
    self._say = say

  def __call__(self, moment: Moment):
    if not moment.is_stopping:  # Then a run that continues makes up for it.
      self.evaluate_if_due(
        moment.step, moment.state.mdl_vars, is_last=moment.is_last
      )

  def evaluate_if_due(self, step: int, mdl_vars: Any, *, is_last: bool):
    """Evaluates what is due after step `step` with the weights of that step."""
    if is_last:
      names = tuple(self._data)
    elif self._every and step % self._every == 0:
      names = self._during
    else:
      return
    if not names:
      return
    self._before()
    for name in names:
      self._evaluate(name, step, mdl_vars)
    self._progress.start()  # An evaluation is not training time.

  def _evaluate(self, name: str, step: int, mdl_vars: Any):
    metrics = evaluation.evaluate(
      self._data[name],
      eval_step=self._program.eval_step,
      mdl_vars=mdl_vars,
      put=self._put,
    )
    self._writer.write_scalars(step, f'eval_{name}', metrics)
    told = [
      f'{key} {metrics[key]:.4f}'
      for key in ('loss', 'log_pplx', 'fraction_of_correct_next_step_preds')
      if key in metrics
    ]
    self._say(f'step {step}  eval {name}: {"  ".join(told)}')
