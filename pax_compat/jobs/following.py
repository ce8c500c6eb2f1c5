"""Follows a run: takes each of its checkpoints once, until training ends."""

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
from absl import logging

from pax_compat import errors
from pax_compat.jobs.watching import Watch
from pax_compat.processes import first_process
from pax_compat.trainer import stopping

# Seconds between two looks: as short as this at first, and longer while nothing
# is new.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0
# How often a job looks for a signal while it waits.
_SECONDS_TO_A_SIGNAL = 0.5
# How often a job that waits says so.
_SECONDS_OF_SILENCE = 600.0
# How often in a row the folder may be unreadable.
_MAX_FAILURES = 8
# What process 0 broadcasts: nothing is new, or a step, added to this.
_NOTHING, _STEP = 0, 1


@dataclasses.dataclass
class _Counts:
  """What became of the checkpoints of a run.

  Attributes:
    deleted: steps of which files were deleted before they were read.
    damaged: what is wrong with others, by step.
  """

  deleted: list[int] = dataclasses.field(default_factory=list)
  damaged: dict[int, str] = dataclasses.field(default_factory=dict)


class Follower:
  """Yields the steps of new checkpoints, oldest first.

  With several processes, all of them iterate together, and process 0 decides.

  Attributes:
    counts: what became of checkpoints that were not read.
  """

  def __init__(
    self,
    watch: Watch,
    *,
    is_done: Callable[[int, str], bool],
    last_step: int,
    stop: stopping.Stop,
    print_line: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
  ):
    """Reads nothing.

    Args:
      watch: the checkpoints.
      is_done: (step, digest) -> whether nothing is left to do for a checkpoint.
      last_step: the task's last step, see `Watch.ends_training`.
      stop: called while it waits; returns whether to stop.
      print_line: prints a line for the user.
      sleep: waits for some seconds.
    """
    self._watch = watch
    self._is_done = is_done
    self._last_step = last_step
    self._stop = stop
    self._print_line = print_line
    self._sleep = sleep
    self._unreadable: set[tuple[int, str]] = set()
    self._failures = 0
    self._has_waited = False
    self.counts = _Counts()

  def __iter__(self) -> Iterator[int]:
    """Yields steps until training has ended.

    Raises:
      stopping.Interrupted: the job is to stop.
      Exception: the folder cannot be read, several times in a row.
    """
    waits = 0
    while True:
      self._stop.check()
      found = first_process.result_of(
        self._decide, f'cannot read the checkpoints in {self._watch.directory}'
      )
      if found is None:
        return
      if found == _NOTHING:
        self._wait(waits)
        waits += 1
      else:
        waits = 0
        yield found - _STEP

  def give_up(self, step: int, digest: str, reason: str):
    """Leaves out a checkpoint that cannot be read; for process 0.

    Args:
      step: of the checkpoint.
      digest: what `Watch.digest` returned before it was read.
      reason: why it cannot be read, in its files.
    """
    self._unreadable.add((step, digest))
    if not self._watch.exists(step) or self._watch.digest(step) != digest:
      self.counts.deleted.append(step)
      line = f'the checkpoint of step {step} was deleted before it was read'
    else:
      self.counts.damaged[step] = reason
      line = f'the checkpoint of step {step} cannot be read: {reason}'
    self._print_line(line)

  def _decide(self) -> int | None:
    """Returns a step to take, `_NOTHING` yet, or None at the end."""
    try:
      steps = self._watch.steps()
      for step in steps:
        if self._is_new(step):
          return step + _STEP
      ended = bool(steps) and self._watch.ends_training(
        steps[-1], last_step=self._last_step
      )
      self._failures = 0
    except (OSError, errors.UserError) as e:
      # Of a file system that may recover.
      self._failures += 1
      if self._failures > _MAX_FAILURES:
        raise
      logging.warning(
        'cannot read the checkpoints in %s, trying again: %s',
        self._watch.directory,
        e,
      )
      return _NOTHING
    return None if ended else _NOTHING

  def _is_new(self, step: int) -> bool:
    digest = self._watch.digest(step)
    if (step, digest) in self._unreadable or self._is_done(step, digest):
      return False
    # Without a digest its manifest is damaged, or it was deleted just now.
    return bool(digest) or step in self._watch.steps()

  def _wait(self, waits: int):
    """Waits before looking again, for the same time in all processes."""
    seconds = min(_FIRST_WAIT * 1.5**waits, _LONGEST_WAIT)
    if not self._has_waited:
      self._has_waited = True
      self._print_line(
        f'waiting for the next checkpoint in {self._watch.directory}'
      )
    elif seconds == _LONGEST_WAIT:
      logging.log_every_n_seconds(
        logging.INFO,
        'still waiting for a checkpoint in %s, until training ends or this'
        ' process gets SIGTERM',
        _SECONDS_OF_SILENCE,
        self._watch.directory,
      )
    while seconds > 0:
      part = min(seconds, _SECONDS_TO_A_SIGNAL)
      self._sleep(part)
      seconds -= part
      if jax.process_count() == 1:
        self._stop.check()
