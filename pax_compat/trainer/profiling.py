"""Profiles of a few steps, for TensorBoard."""

import dataclasses
import pathlib
import time
from typing import Any

import jax
from absl import logging

from pax_compat import errors


@dataclasses.dataclass(kw_only=True)
class Profile:
  """Takes one profile of a loop over steps.

  If that fails, as another profile is taken or a disk is full, the log says so,
  and the loop goes on.

  Attributes:
    folder: a folder that TensorBoard reads, such as `summaries/train`.
    first_step: the first step in it.
    num_steps: least number of steps.
    min_seconds: least duration.
    max_num_hosts: number of processes that take one; None for all.
    of_host: whether it contains Python's calls.
  """

  folder: pathlib.Path
  first_step: int
  num_steps: int
  min_seconds: float
  max_num_hosts: int | None = None
  of_host: bool = False

  def __post_init__(self):
    self._started: float | None = None
    self._done = (
      self.max_num_hosts is not None
      and jax.process_index() >= self.max_num_hosts
    )

  def __enter__(self) -> 'Profile':
    return self

  def __exit__(self, *unused_error):
    if self._started is not None:
      self._stop()

  def before_step(self, step: int, outputs: Any):
    """Starts or stops the profile, if that is scheduled.

    Args:
      step: the next step.
      outputs: arrays of the last step before it that was dispatched, if any.
        The profile starts and stops when they are ready.
    """
    if self._done:
      return
    if self._started is None:
      if step >= self.first_step:
        jax.block_until_ready(outputs)
        self._start(step)
    elif (
      step >= self._begun + self.num_steps
      and time.monotonic() - self._started >= self.min_seconds
    ):
      jax.block_until_ready(outputs)
      self._stop()

  def _start(self, step: int):
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 2 if self.of_host else 1
    options.python_tracer_level = 1 if self.of_host else 0
    try:
      jax.profiler.start_trace(self.folder, profiler_options=options)
    except Exception as e:  # noqa: BLE001 (of the library)
      self._fail(e)
      return
    self._begun = step
    self._started = time.monotonic()

  def _stop(self):
    self._started, self._done = None, True
    try:
      jax.profiler.stop_trace()
    except Exception as e:  # noqa: BLE001 (of the library)
      self._fail(e)
      return
    logging.info('profiled from step %d on; see %s', self._begun, self.folder)

  def _fail(self, error: Exception):
    self._done = True
    logging.warning(
      'no profile is taken in %s: %s', self.folder, errors.one_line(error)
    )
