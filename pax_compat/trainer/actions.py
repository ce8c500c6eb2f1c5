"""Actions: what happens at intervals while a task is trained.

The loop calls each action after every step; the action decides whether it is
scheduled for that step.
"""

import dataclasses
import functools
import gc
import pathlib
from collections.abc import Callable
from typing import Any, Protocol

import jax

from pax_compat.processes import first_process
from pax_compat.tasks import early_stopping
from pax_compat.tasks.early_stopping import RunningMode
from pax_compat.trainer import profiling, program
from pax_compat.trainer.feeding.pipeline import DeviceBatch
from pax_compat.trainer.step_outputs import StepOutputs

# Key in a checkpoint: whether evaluations of its step are pending.
EVALUATIONS_PENDING = 'evaluations_due'
# Key in a checkpoint: whether the run stopped early at its step.
STOPPED_EARLY = 'stopped_early'
# Key in a checkpoint: whether it is the last one of its run, for the jobs that
# follow the run.
TRAINING_ENDED = 'training_ended'


@dataclasses.dataclass
class StepContext:
  """The state of a run after a step, as actions see it.

  The loop makes one for each step. Some actions write into it, and
  only those that run later read what they wrote:

    Evaluate, Decode: `measured`; `is_stopping` and `evaluations_pending` if the
      run is to stop meanwhile.
    UpdateSchedules: `state`, with which the next step goes on, and
      `updated_schedules`.
    StopEarly: `stops_early`.

  Attributes:
    step: number of steps made, including this one.
    is_last_step: whether it is the task's last step.
    is_stopping: whether the run was asked to stop here.
    state: the state after the step.
    outputs: of the step, on the devices, perhaps not yet computed; None before
      the first step of this run.
    batch: the batch of the step; None before the first step of this run.
    compile_seconds: how long the step was compiled; 0 if it was before.
    measured: scalars of evaluations and decodings after the step, by split and
      name.
    stops_early: whether the early stopping function ends the run here.
    evaluations_pending: whether an evaluation is left out, because the run
      stops.
    updated_schedules: whether `state` depends on `measured`.
  """

  step: int
  is_last_step: bool
  is_stopping: bool
  state: program.TrainState
  outputs: StepOutputs | None = None
  batch: DeviceBatch | None = None
  compile_seconds: float = 0.0
  measured: dict[str, dict[str, float]] = dataclasses.field(
    default_factory=dict
  )
  stops_early: bool = False
  evaluations_pending: bool = False
  updated_schedules: bool = False

  @property
  def is_last_step_of_run(self) -> bool:
    """Whether this run makes no step after this one."""
    return self.is_last_step or self.is_stopping or self.stops_early


def evaluation_metadata(
  context: StepContext, *, pending: bool = False
) -> dict[str, bool]:
  """Returns a checkpoint's metadata about the evaluations after a step.

  Args:
    context: of the step.
    pending: whether they are pending in any case.
  """
  return {
    EVALUATIONS_PENDING: pending or context.evaluations_pending,
    STOPPED_EARLY: context.stops_early,
    TRAINING_ENDED: context.is_last_step or context.stops_early,
  }


class Action(Protocol):
  """Something that happens at intervals."""

  def __call__(self, context: StepContext):
    """Is called after every step; acts if it is scheduled."""


class UpdateSchedules:
  """Updates schedules that depend on evaluations.

  It writes `StepContext.state`. Every process has the metrics of evaluations.
  """

  def __init__(self, task_program: program.TaskProgram):
    self._learner = task_program.learner

  def __call__(self, context: StepContext):
    if not context.measured or context.evaluations_pending:
      return
    self.update(context, context.measured)

  def update(self, context: StepContext, measured: dict[str, dict[str, float]]):
    """Updates schedules.

    Args:
      context: of the step.
      measured: scalars of the evaluations after it, by split and name.
    """
    before = context.state.opt_state
    after = self._learner.after_evaluations(before, context.step, measured)
    leaves = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    if any(old is not new for old, new in leaves):
      context.state = context.state.replace(opt_state=after)
      context.updated_schedules = True


class StopEarly:
  """Calls the task's early stopping function after evaluations and decodings.

  It writes `StepContext.stops_early`.
  """

  def __init__(
    self,
    early_stopping_fn: Callable[..., Any] | None,
    *,
    checkpoint_path: pathlib.Path,
    print_line: Callable[[str], None],
  ):
    self._early_stopping_fn = early_stopping_fn
    self._checkpoint_path = checkpoint_path
    self._print_line = print_line

  def __call__(self, context: StepContext):
    if self._early_stopping_fn is None or not context.measured:
      return
    if context.evaluations_pending:  # The missing metrics may matter.
      return
    metrics = {
      f'{split}/{name}': value
      for split, values in context.measured.items()
      for name, value in values.items()
    }
    if context.outputs is not None:
      train = jax.device_get(context.outputs)
      metrics |= {f'train/{k}': float(train[k]) for k in train.scalar_names()}
    mode = RunningMode.detect(
      context.outputs is not None,
      any(split.startswith('eval_') for split in context.measured),
      any(split.startswith('decode_') for split in context.measured),
    )
    # The first process decides for all; only it has the decoding's metrics.
    last, path = context.is_last_step, self._checkpoint_path
    metrics = early_stopping.pax_names(context.measured) | metrics
    fn = functools.partial(
      self._early_stopping_fn,
      *early_stopping.accepted(
        self._early_stopping_fn, (metrics, mode, context.step, last, path)
      ),
    )
    stops = first_process.result_of(
      lambda: int(bool(fn())), 'has failed in the early_stopping_fn of the task'
    )
    if stops and not context.is_last_step:
      context.stops_early = True
      self._print_line(
        f'stops early after step {context.step}, because the early_stopping_fn'
        ' of the task returns True'
      )


class CallModel:
  """Calls the model's `after_step`, one step late and at the end.

  Another call with the same step, as the run stops after it, is its end.
  """

  def __init__(self, function: Callable[[int, Any], None]):
    self._function = function
    self._late: StepContext | None = None

  def __call__(self, context: StepContext):
    if self._late is None or self._late.step != context.step:
      self._flush()
      if context.outputs is not None and jax.process_index() == 0:
        self._late = dataclasses.replace(context, state=None, batch=None)
    if context.is_last_step_of_run:
      self._flush()

  def _flush(self):
    late, self._late = self._late, None
    if late is not None:
      self._function(late.step, dict(jax.device_get(late.outputs.weighted)))


class TakeProfile:
  """Takes a profile that begins and ends between steps."""

  def __init__(self, profile: profiling.Profile):
    self._profile = profile

  def __call__(self, context: StepContext):
    arrays = context.state if context.outputs is None else context.outputs
    self._profile.before_step(context.step + 1, arrays)


class CollectGarbage:
  """Within it, Python's garbage is collected every `every` steps only."""

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

  def __call__(self, context: StepContext):
    if context.step % self._every == 0:
      gc.collect()
