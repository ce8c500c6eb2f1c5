"""The train step, compiled in a thread while the state is made.

Tracing holds Python's lock, compiling does not. So the step is traced first,
and compiled while the initial state is created or a checkpoint is read.
"""

import contextlib
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

    None if nothing is compiled ahead.

    Raises:
      Exception: of compiling the step.
    """
    return None if self._seconds is None else self._seconds.result()


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
  lowered = task_program.trace_train_step(first.example).lower()

  def compile_it() -> float:
    lowered.compile()
    return time.monotonic() - began

  executor = futures.ThreadPoolExecutor(1, 'compile-train-step')
  try:
    yield AheadOfTime(shapes, executor.submit(compile_it))
  finally:
    executor.shutdown(wait=False, cancel_futures=True)
