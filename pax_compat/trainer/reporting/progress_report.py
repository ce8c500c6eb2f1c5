"""Reports of a run: progress lines, metrics and summaries of train steps."""

import time
from collections.abc import Callable

import jax

from pax_compat import tasks_lib
from pax_compat.metrics import metric_writers
from pax_compat.metrics import progress as progress_lib
from pax_compat.trainer import program
from pax_compat.trainer.actions import StepContext
from pax_compat.trainer.evaluating import batch_results

# The longest time without a line if `report_progress_hook` is set.
_SECONDS_OF_SILENCE = 60


def has_summaries(settings: tasks_lib.Train, step: int, start: int) -> bool:
  """Returns whether a step computes summaries, in a run that starts at `start`.

  If a run is stopped, its last step is not known in advance, and its report may
  lack what only summaries need.
  """
  every = settings.summary_accumulate_interval_steps
  every = every or settings.summary_interval_steps
  return step % every == 0 or step in (start + 1, settings.num_train_steps)


class Report:
  """Formats and writes the outputs of steps at the task's intervals."""

  def __init__(
    self,
    *,
    task_program: program.TaskProgram,
    progress: progress_lib.Progress,
    writer: metric_writers.MetricWriter,
    print_line: Callable[[str], None],
    other_metrics: Callable[[], dict[str, float]],
  ):
    """Starts before the first step.

    Args:
      task_program: has the steps.
      progress: has counted them; formats the line.
      writer: takes the metrics.
      print_line: prints a line for the user.
      other_metrics: returns metrics that the steps do not have.
    """
    self._other_metrics = other_metrics
    self._settings: tasks_lib.Train = task_program.task.train
    self._program = task_program
    self._progress = progress
    self._writer = writer
    self._print_line = print_line
    self._aggregator = batch_results.StepAggregator(task_program)
    self._is_first = True
    self._last_line = time.monotonic()

  def __call__(self, context: StepContext):
    """Reports a step that was counted."""
    writes = self._is_at(context, self._settings.summary_interval_steps)
    prints = self._prints(context, writes)
    every = self._settings.summary_accumulate_interval_steps
    accumulates = bool(every) and context.step % every == 0
    if accumulates or (writes and not self._aggregator.count):
      self._aggregator.add(jax.device_get(context.outputs))
    if not writes and not prints:
      return
    loss = context.outputs[self._program.loss_aggregator.loss_name]
    self._progress.set_loss(float(loss))
    line, rates = self._progress.report()
    if self._is_first:
      # Most of its time was compilation, so it has no rates.
      line, rates = f'step {context.step}  loss {float(loss):.4g}', {}
      # In a thread, other steps may have ended meanwhile.
      self._progress.start(at_last_step=self._settings.async_summary_writing)
      self._is_first = False
    if prints:
      self._last_line = time.monotonic()
      self._print_line(line)
    if writes:
      self._writer.write_values(
        context.step,
        'train',
        {**self._aggregator.result(), **rates, **self._other_metrics()},
      )
      self._aggregator = batch_results.StepAggregator(self._program)

  def _is_at(self, context: StepContext, every: int) -> bool:
    return (
      self._is_first or context.is_last_step_of_run or context.step % every == 0
    )

  def _prints(self, context: StepContext, writes: bool) -> bool:
    every = self._settings.log_train_output_interval_steps
    silent = time.monotonic() - self._last_line
    if self._settings.report_progress_hook and silent > _SECONDS_OF_SILENCE:
      return True
    return writes if every is None else self._is_at(context, every)
