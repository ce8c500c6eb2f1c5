"""Counting of finished steps, whose outputs are then reported."""

import concurrent.futures
import dataclasses
from collections.abc import Callable

import jax

from pax_compat.metrics import progress as progress_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.actions import StepContext
from pax_compat.trainer.feeding.pipeline import DeviceBatch

# How many steps the thread may be late, as when a disk does not answer. Their
# outputs take up memory.
_MAX_PENDING = 1000


class StepCounter:
  """An action that counts each step when its outputs are ready.

  With `asynchronous`, a thread waits for the outputs, and the loop waits for
  the thread only if that is very late. Without, a step is counted after the
  next one was dispatched, so that the devices never wait. The end of a `with`
  block ends the thread.
  """

  def __init__(
    self,
    *,
    progress: progress_lib.Progress,
    report: Callable[[StepContext], object],
    num_infeed_hosts: int,
    asynchronous: bool,
    max_inflight_steps: int = 0,
    flops: Callable[[DeviceBatch], float | None] = lambda batch: None,
    alive: Callable[[str, int], object] = lambda text, step: None,
  ):
    """Starts before the first step.

    Args:
      progress: counts the steps.
      report: is called after each step that was counted.
      num_infeed_hosts: number of processes that read different examples.
      asynchronous: see above.
      max_inflight_steps: before an action of a step, the loop waits for the
        step so many steps earlier; 0 if it waits for none.
      flops: returns the model's floating point operations for a batch, over all
        processes; None if they are not known.
      alive: shows a sign of life, see `processes.watchdog`.
    """
    self._progress = progress
    self._report = report
    self._num_infeed_hosts = num_infeed_hosts
    self._flops = flops
    self._alive = alive
    self._thread = None
    if asynchronous:
      self._thread = concurrent.futures.ThreadPoolExecutor(
        1, thread_name_prefix='report'
      )
    self._pending: list[concurrent.futures.Future] = []
    self._max_inflight_steps = max_inflight_steps
    # When the action of a step began, of those that are not yet counted,
    # without the seconds of all compilation until then.
    self._began: dict[int, float] = {}
    self._compile_seconds = 0.0
    self._last: StepContext | None = None
    # The shapes of batches, by their text.
    self._arrays: dict[str, NestedMap] = {}

  def __enter__(self) -> 'StepCounter':
    return self

  def __exit__(self, *unused_error):
    if self._thread is not None:
      self._thread.shutdown(cancel_futures=True)

  def __call__(self, context: StepContext):
    # Without the state, which is donated to the next step.
    context = dataclasses.replace(
      context, state=None, batch=self._without_arrays(context.batch)
    )
    if self._thread is not None:
      while self._pending and (
        self._pending[0].done() or len(self._pending) >= _MAX_PENDING
      ):
        self._pending.pop(0).result()
      self._compile_seconds += context.compile_seconds
      self._began[context.step] = self._progress.now() - self._compile_seconds
      self._pending.append(self._thread.submit(self._count, context))
    else:
      self.flush()
      self._last = context
    if context.is_last_step_of_run:
      self.flush()

  def flush(self):
    """Counts all steps so far.

    Raises:
      Exception: an error of a report.
    """
    while self._pending:
      self._pending.pop(0).result()
    if self._last is not None:
      last, self._last = self._last, None
      self._count(last)

  def _count(self, context: StepContext):
    ended = None
    if self._thread is not None:
      jax.block_until_ready(context.outputs)
      self._alive('step %d ends', context.step)
      # A report of an earlier step may have taken longer than some steps.
      if self._max_inflight_steps:
        ended = self._began.get(context.step + self._max_inflight_steps)
      del self._began[context.step]
    self._progress.leave_out(context.compile_seconds)
    self._progress.count_step(
      tokens=context.batch.tokens * self._num_infeed_hosts,
      input_wait=context.batch.wait_seconds,
      flops=self._flops(context.batch) or 0.0,
      ended=ended,
    )
    self._report(context)

  def _without_arrays(self, batch: DeviceBatch) -> DeviceBatch:
    """Returns a batch with shapes, which take up no memory of the devices."""
    if batch.shapes not in self._arrays:
      self._arrays[batch.shapes] = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch.arrays
      )
    return dataclasses.replace(
      batch, arrays=self._arrays[batch.shapes], host={}, input_state=None
    )
