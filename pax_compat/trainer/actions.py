"""What happens every so often while a task is trained.

An action is asked after each step whether it is due, and then runs. The loop
knows none of them by name.
"""

import dataclasses
import gc
import pathlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import checkpoints
from pax_compat.processes import first_process
from pax_compat.tasks.early_stopping import RunningMode
from pax_compat.trainer import profiling, program
from pax_compat.trainer.feeding import prefetching
from pax_compat.trainer.step_outputs import StepOutputs

# Says in a checkpoint whether evaluations of its step were put off.
EVALUATIONS_DUE = 'evaluations_due'
# Says in a checkpoint whether the run ended there, early.
STOPPED_EARLY = 'stopped_early'

# How often several processes agree on whether it is time to save.
_STEPS_BETWEEN_CLOCKS = 50


@dataclasses.dataclass
class Moment:
  """Where a run stands after a step.

  Attributes:
    step: steps that were made, this one included.
    is_last: whether the task's last step was made.
    is_stopping: whether the run is asked to end here.
    state: the state after the step.
    outputs: what the step told, on the devices, perhaps not yet computed; None
      where the run goes on from here and made no step yet.
    fed: the batch that the step saw; None likewise.
    measured: what was evaluated and decoded after the step, by split and name.
    stops_early: whether what was measured ends the run here.
    evaluations_due: whether something was not measured, because the run stops.
  """

  step: int
  is_last: bool
  is_stopping: bool
  state: program.TrainState
  outputs: StepOutputs | None = None
  fed: prefetching.FedBatch | None = None
  measured: dict[str, dict[str, float]] = dataclasses.field(
    default_factory=dict
  )
  stops_early: bool = False
  evaluations_due: bool = False

  @property
  def ends(self) -> bool:
    """Whether no step follows in this run."""
    return self.is_last or self.is_stopping or self.stops_early


def measures_of(moment: Moment) -> dict[str, bool]:
  """Returns what a checkpoint says of what was measured after a step."""
  return {
    EVALUATIONS_DUE: moment.evaluations_due,
    STOPPED_EARLY: moment.stops_early,
  }


class Action(Protocol):
  """Something that happens every so often."""

  def __call__(self, moment: Moment):
    """Is called after every step; acts when it is due."""


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
    of_input: Callable[[bytes | None], dict[str, Any]] = lambda state: {},
  ):
    """Makes it.

    Args:
      checkpointer: saves.
      steps: see above; None for no such interval.
      seconds: see above; None likewise.
      before: is called before it saves.
      of_input: returns what a checkpoint says of the training input, by what
        came with the batch of the step.
    """
    self._checkpointer = checkpointer
    self._of_input = of_input
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
      {
        'batches_read': moment.step,
        **measures_of(moment),
        **self._of_input(moment.fed and moment.fed.input_state),
      },
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


class StopEarly:
  """Asks the task, after evaluations and decodings, whether the run ends."""

  def __init__(
    self,
    early_stopping_fn: Callable[..., Any] | None,
    *,
    checkpoint_path: pathlib.Path,
    say: Callable[[str], None],
  ):
    self._early_stopping_fn = early_stopping_fn
    self._checkpoint_path = checkpoint_path
    self._say = say

  def __call__(self, moment: Moment):
    if self._early_stopping_fn is None or not moment.measured:
      return
    if moment.evaluations_due:  # What was not measured may say otherwise.
      return
    metrics = {
      f'{split}/{name}': value
      for split, values in moment.measured.items()
      for name, value in values.items()
    }
    if moment.outputs is not None:
      told = jax.device_get(moment.outputs)
      metrics |= {f'train/{k}': float(told[k]) for k in told.scalar_names()}
    mode = RunningMode.detect(
      moment.outputs is not None,
      any(split.startswith('eval_') for split in moment.measured),
      any(split.startswith('decode_') for split in moment.measured),
    )
    # The first process answers for all; it alone knows what was decoded.
    stops = jax.process_index() == 0 and self._early_stopping_fn(
      metrics, mode, moment.step, moment.is_last, self._checkpoint_path
    )
    if first_process.value_of(int(bool(stops))) and not moment.is_last:
      moment.stops_early = True
      self._say(
        f'stops early after step {moment.step}, because the early_stopping_fn'
        ' of the task says so'
      )


class TakeProfile:
  """Takes a profile, which begins and ends between steps."""

  def __init__(self, profile: profiling.Profile):
    self._profile = profile

  def __call__(self, moment: Moment):
    made = moment.state if moment.outputs is None else moment.outputs
    self._profile.before_step(moment.step + 1, made)


class CollectGarbage:
  """Collects Python's garbage every `every` steps, and at no other time.

  That holds while it is entered.
  """

  def __init__(self, every: int):
    self._every = every

  def __enter__(self) -> 'CollectGarbage':
    gc.collect()
    gc.freeze()
    gc.disable()
    return self

  def __exit__(self, *unused_error):
    gc.enable()
    gc.unfreeze()

  def __call__(self, moment: Moment):
    if moment.step % self._every == 0:
      gc.collect()
