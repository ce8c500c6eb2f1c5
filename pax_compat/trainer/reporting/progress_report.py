"""How a run says what its steps told: progress lines, metrics, summaries."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable

import jax

from pax_compat import tasks_lib
from pax_compat.metrics import metric_writers
from pax_compat.metrics import progress as progress_lib
from pax_compat.trainer import program
from pax_compat.trainer.actions import Moment
from pax_compat.trainer.evaluating import evaluation

# How long a run may be silent where it is asked to report its progress.
_SECONDS_OF_SILENCE = 60


def is_due(settings: tasks_lib.Train, step: int, start: int) -> bool:
  """Whether summaries tell of a step, of a run that goes on from `start`.

  Which step is the last is not known where the run is stopped, so that what is
  told of that one may lack what only summaries need.
  """
  every = settings.summary_accumulate_interval_steps
  every = every or settings.summary_interval_steps
  return step % every == 0 or step in (start + 1, settings.num_train_steps)


class Report:
  """Counts every step, and says how the run goes every so many steps.

  With `async_summary_writing`, a thread waits for what the steps tell, and the
  loop waits for nothing. Without, a step is looked at when the next one is on
  its way, so that the devices never wait for it. The end of a `with` block ends
  the thread.
  """

  def __init__(
    self,
    *,
    task_program: program.TaskProgram,
    progress: progress_lib.Progress,
    writer: metric_writers.MetricWriter,
    say: Callable[[str], None],
    of_input: Callable[[], dict[str, float]],
  ):
    """Sets it up.

    Args:
      task_program: has the steps.
      progress: counts them.
      writer: takes the metrics.
      say: takes the lines that the user reads.
      of_input: returns what the training input tells of itself.
    """
    self._of_input = of_input
    self._settings: tasks_lib.Train = task_program.task.train
    self._program = task_program
    self._progress = progress
    self._writer = writer
    self._say = say
    self._thread = None
    if self._settings.async_summary_writing:
      self._thread = concurrent.futures.ThreadPoolExecutor(
        1, thread_name_prefix='report'
      )
    self._pending: list[concurrent.futures.Future] = []
    self._held: Moment | None = None
    self._means = evaluation.Means(task_program)
    self._is_first = True
    self._last_line = time.monotonic()

  def __enter__(self) -> 'Report':
    return self

  def __exit__(self, *unused_error):
    if self._thread is not None:
      self._thread.shutdown(cancel_futures=True)

  def __call__(self, moment: Moment):
    # Without the state, which the next step takes over.
    seen = dataclasses.replace(moment, state=None)
    if self._thread is not None:
      while self._pending and self._pending[0].done():
        self._pending.pop(0).result()
      self._pending.append(self._thread.submit(self._look_at, seen))
    else:
      self.flush()
      self._held = seen
    if moment.ends:
      self.flush()

  def flush(self):
    """Returns when all steps so far were looked at.

    Raises:
      Exception: what was raised when one was.
    """
    while self._pending:
      self._pending.pop(0).result()
    if self._held is not None:
      held, self._held = self._held, None
      self._look_at(held)

  def _look_at(self, moment: Moment):
    if self._thread is not None:
      jax.block_until_ready(moment.outputs)  # For the clock's sake.
    self._progress.count_step(
      tokens=moment.fed.tokens * self._program.batch_sharding.num_infeed_hosts,
      input_wait=moment.fed.wait_seconds,
    )
    writes = self._is_due(moment, self._settings.summary_interval_steps)
    speaks = self._speaks(moment, writes)
    every = self._settings.summary_accumulate_interval_steps
    adds = bool(every) and moment.step % every == 0
    if adds or (writes and not self._means.count):
      self._means.add(jax.device_get(moment.outputs))
    if not writes and not speaks:
      return
    loss = moment.outputs[self._program.loss_aggregator.loss_name]
    self._progress.set_loss(float(loss))
    line, rates = self._progress.report()
    if self._is_first:
      # Most of its time was compilation, which says nothing about the others.
      line, rates = f'step {moment.step}  loss {float(loss):.4g}', {}
      self._progress.start()
      self._is_first = False
    if writes:
      self._writer.write_values(
        moment.step,
        'train',
        {**self._means.result(), **rates, **self._of_input()},
      )
      self._means = evaluation.Means(self._program)
    if speaks:
      self._last_line = time.monotonic()
      self._say(line)

  def _is_due(self, moment: Moment, every: int) -> bool:
    return self._is_first or moment.ends or moment.step % every == 0

  def _speaks(self, moment: Moment, writes: bool) -> bool:
    every = self._settings.log_train_output_interval_steps
    silent = time.monotonic() - self._last_line
    if self._settings.report_progress_hook and silent > _SECONDS_OF_SILENCE:
      return True
    return writes if every is None else self._is_due(moment, every)
