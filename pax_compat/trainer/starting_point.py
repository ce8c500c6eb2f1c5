"""Where a run starts: its newest checkpoint, other values, or new weights."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pax_compat import base_experiment, checkpoints, errors, tasks_lib
from pax_compat.experiments import resolved
from pax_compat.metrics import time_use
from pax_compat.trainer import actions, program, run_options, saving
from pax_compat.trainer.reporting import run_folder
from pax_compat.warm_start import start as warm_start
from pax_compat.warm_start import transforming

# What can be done with a run that has ended.
_INSTEAD = (
  'nothing to train. --mode=eval evaluates its checkpoints, --mode=decode_once'
  ' decodes the last one'
)


@dataclasses.dataclass(frozen=True)
class StartingPoint:
  """Where a run starts.

  Attributes:
    step: the number of steps made before.
    origin: what a new run starts from; None for new weights, and for a run that
      continues.
    extra: the metadata of the checkpoint that the run continues from; None for
      a new run.
  """

  step: int
  origin: base_experiment.Start | None
  extra: Mapping[str, Any] | None

  @property
  def is_new(self) -> bool:
    """Whether the run has no checkpoint yet."""
    return self.extra is None

  @property
  def evaluations_pending(self) -> bool:
    """Whether the step has yet to be evaluated."""
    return bool(self._extra(actions.EVALUATIONS_PENDING))

  @property
  def measured(self) -> Any:
    """Scalars of the evaluations of the step that schedules depend on."""
    return self._extra(saving.MEASURED)

  def adds_to(self, spent: time_use.TimeUse) -> time_use.TimeUse:
    """Returns `spent`, with the time up to the checkpoint."""
    if saved := self._extra(time_use.TIME_USE):
      spent.go_on(saved)
    return spent

  def nothing_to_train(
    self, task: tasks_lib.SingleTask, options: run_options.RunOptions
  ) -> str:
    """Returns why there is nothing to train; '' if there is."""
    limit = task.train.num_train_steps
    if self.step >= limit and not self.evaluations_pending:
      return (
        f'all {self.step} steps are done already; {_INSTEAD}, and'
        f' --set=task.train.num_train_steps={2 * self.step} goes on training'
      )
    stops_early = task.early_stopping_fn or options.early_stopping
    if self._extra(actions.STOPPED_EARLY) and stops_early:
      return (
        f'the run was stopped early after step {self.step} already; {_INSTEAD},'
        ' and --set=task.early_stopping_fn=None goes on training'
      )
    return ''

  def withdraw_end(self, checkpointer: checkpoints.Checkpointer):
    """Withdraws that training has ended, as jobs that follow it must go on."""
    if self._extra(actions.TRAINING_ENDED) and not self.evaluations_pending:
      checkpointer.amend(self.step, {actions.TRAINING_ENDED: False})

  def state(
    self,
    task_program: program.TaskProgram,
    checkpointer: checkpoints.Checkpointer,
    batch: Any,
    print_line: Callable[[str], None],
  ) -> program.TrainState:
    """Returns the state to start from.

    Args:
      task_program: the task's compiled steps.
      checkpointer: of the run.
      batch: the first batch, or its shapes.
      print_line: prints a line for the user.
    """
    if self.origin is not None:
      state = self.origin.state(task_program, batch)
      print_line(f'starts from {self.origin}')
      return state
    if not self.is_new:
      state = _restored(task_program, checkpointer, self.step, batch)
      print_line(f'continues from the checkpoint of step {self.step}')
      return state
    count = run_folder.num_parameters(task_program)
    print_line(f'starts with {count:,} new parameters')
    return task_program.init_state(batch)

  def reports(self) -> dict[str, str]:
    """Returns the report of a warm start by file name; after `state`."""
    if isinstance(self.origin, warm_start.Start):
      return {warm_start.FILE: self.origin.report}
    return {}

  def _extra(self, key: str) -> Any:
    return self.extra.get(key) if self.extra else None


def find(
  checkpointer: checkpoints.Checkpointer,
  experiment: resolved.ResolvedExperiment,
  train: tasks_lib.Train,
) -> StartingPoint:
  """Returns the starting point of a run.

  Args:
    checkpointer: of the run.
    experiment: may start from values of another framework.
    train: the task's settings, which may ask for a warm start.

  Raises:
    UserError: there are two starts, or one that does not exist.
  """
  step = checkpointer.latest_step()
  if step is not None:
    return StartingPoint(step, None, checkpointer.extra(step))
  origin, warm = experiment.start(), warm_start.of_task(train)
  if origin and warm:
    raise errors.UserError(
      f'the run starts from {origin}, and from {warm}; expected one of them'
    )
  origin = origin or warm
  return StartingPoint(origin.step if origin else 0, origin, None)


def _restored(task_program, checkpointer, step, batch):
  """Returns the state of a checkpoint of the run."""
  train, state = task_program.task.train, task_program.abstract_state
  if train.restore_transformations:
    stored = checkpoints.StoredCheckpoint(checkpointer.directory, step)
    if transforming.needed(train, stored, state):
      made = transforming.restore(task_program, stored, batch)
      checkpointer.continue_from(step)
      return made
  return checkpointer.restore(step, state)[0]
