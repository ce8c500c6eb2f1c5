"""Retention policy: deletes old checkpoints."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.checkpoints.manifests import Manifests
from pax_compat.runs import files as files_lib

# The temporary name of a step's folder while Orbax writes it.
_HALF_WRITTEN = re.compile(r'\d+\.orbax-checkpoint-tmp')


class Retention:
  """Keeps the newest checkpoints, and some permanently. For process 0 only.

  Orbax's own policy is not used, because it deletes old checkpoints before the
  new one is committed.
  """

  def __init__(
    self,
    manifests: Manifests,
    *,
    max_to_keep: int | None,
    keep_interval_seconds: float | None,
    keep_interval_steps: int | None = None,
    clock: Callable[[], float],
  ):
    """Does not delete anything.

    Args:
      manifests: the manifests of the folder.
      max_to_keep: see `Checkpointer`.
      keep_interval_seconds: see `Checkpointer`.
      keep_interval_steps: see `Checkpointer`.
      clock: returns seconds.

    Raises:
      UserError: `max_to_keep` is less than 1.
    """
    if max_to_keep is not None and max_to_keep < 1:
      raise errors.UserError(
        f'max_to_keep is {max_to_keep}; expected 1 or more, or None for all'
      )
    self._manifests = manifests
    self._max_to_keep = max_to_keep
    self._keep_interval_seconds = keep_interval_seconds
    self._keep_interval_steps = keep_interval_steps
    self._clock = clock

  def of_new(self, step: int) -> dict[str, Any]:
    """Returns the fields of a new manifest about its retention.

    `kept`: whether the checkpoint is kept permanently. `kept_since`: when the
    last checkpoint was saved that is kept for its time, or the first one of the
    run.

    Args:
      step: the step of the checkpoint, before its commit.
    """
    now = self._clock()
    since = now
    earlier = [s for s in self._manifests.steps() if s < step]
    if earlier:
      since = self._manifests.read(earlier[-1]).get('kept_since', now)
      since = min(since, now)  # A clock may have been wrong before.
    interval, steps = self._keep_interval_seconds, self._keep_interval_steps
    in_time = interval is not None and now - since >= interval
    kept = in_time or (steps is not None and step % steps == 0)
    return {'kept': kept, 'kept_since': now if in_time else since}

  def make_room(self, step: int):
    """Deletes the files of an earlier run for a step that is saved again."""
    files = self._manifests.files(step)
    if files_lib.is_there(files):
      logging.warning(
        'removing %s, which an earlier run left, to save step %d again',
        files,
        step,
      )
      self._manifests.delete(step)
    self._sweep()

  def prune(self, newest: int):
    """Deletes old checkpoints, and those of steps after `newest`."""
    committed = self._manifests.steps()
    later = [step for step in committed if step > newest]
    for step in later:
      logging.warning(
        'removing the checkpoint of step %d: the run continued from an'
        ' earlier one, and now saved step %d',
        step,
        newest,
      )
    earlier = [step for step in committed if step <= newest]
    old = earlier[: -self._max_to_keep] if self._max_to_keep else []
    old = [step for step in old if not self._manifests.read(step).get('kept')]
    for step in later + old:
      self._delete(step)

  def _delete(self, step: int):
    """Deletes a checkpoint, as far as possible; `_sweep` tries again."""
    try:
      self._manifests.delete(step)
    except Exception as e:  # noqa: BLE001 (of a disk or network)
      logging.warning('cannot delete checkpoint %d completely: %s', step, e)

  def _sweep(self):
    """Deletes what a run has left that was killed in a save or a deletion."""
    for step in self._manifests.uncommitted_steps():
      logging.info('deleting what a killed run left of checkpoint %d', step)
      self._delete(step)
    for path in files_lib.children(self._manifests.directory):
      if _HALF_WRITTEN.fullmatch(path.name):
        logging.info('deleting %s, which a killed run left', path)
        with contextlib.suppress(OSError):
          files_lib.delete_folder(path)
