"""The train step, compiled in a thread while the state is made.

Tracing holds Python's lock, compiling does not. So the step is traced first,
and compiled while the initial state is created or a checkpoint is read.
"""

import contextlib
import ctypes
import time
from collections.abc import Iterator
from concurrent import futures

import jax
from absl import logging

from pax_compat.trainer import program
from pax_compat.trainer.feeding import first_batch, pipeline


class AheadOfTime:
  """A train step that is compiled in a thread.

  Attributes:
    shapes: the shapes of the batch, as `pipeline.shapes_of` returns them.
  """

  def __init__(self, shapes: str, seconds: futures.Future | None):
    """Takes the thread's future result; None if nothing is compiled ahead."""
    self.shapes = shapes
    self._seconds = seconds

  def wait(self) -> float | None:
    """Returns the seconds that it took to compile, once it has been done.

    None if nothing is compiled ahead. What compiling has freed is returned to
    the system.

    Raises:
      Exception: of compiling the step.
    """
    if self._seconds is None:
      return None
    seconds = self._seconds.result()
    return_freed_memory()
    return seconds


@contextlib.contextmanager
def started(
  task_program: program.TaskProgram, first: first_batch.FirstBatch
) -> Iterator[AheadOfTime]:
  """Begins to compile the train step for the first batch.

  Not if JAX is to profile its first calls and to compile it again: that does
  not work for programs that were compiled in advance.

  Args:
    task_program: has the step.
    first: the first batch, or its shapes.
  """
  shapes = pipeline.shapes_of(first.example)
  profiles = jax.config.jax_enable_pgle and jax.config.jax_pgle_profiling_runs
  if profiles:
    logging.info(
      'JAX profiles the first %d calls of the train step, and compiles it'
      ' again with what it measured (JAX_ENABLE_PGLE)',
      jax.config.jax_pgle_profiling_runs,
    )
  if profiles or not first.has_its_shapes:
    yield AheadOfTime(shapes, None)
    return
  logging.info('compiling the train step (shape 1): %s', shapes)
  began = time.monotonic()
  executor = futures.ThreadPoolExecutor(1, 'compile-train-step')
  # Nothing here keeps the lowered program, which may be large.
  seconds = executor.submit(
    _compile, task_program.trace_train_step(first.example).lower(), began
  )
  try:
    yield AheadOfTime(shapes, seconds)
  finally:
    executor.shutdown(wait=False, cancel_futures=True)


def return_freed_memory():
  """Returns freed memory of the heap to the system, where the C library can.

  glibc keeps what is freed between blocks that are in use, which is hundreds of
  megabytes after compiling, and the temporary memory of a step does not fit
  into it.
  """
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
  if trim is not None:
    trim(ctypes.c_size_t(0))


def _compile(lowered: jax.stages.Lowered, began: float) -> float:
  lowered.compile()
  return time.monotonic() - began
