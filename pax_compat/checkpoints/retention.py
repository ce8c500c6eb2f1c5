"""Which checkpoints are kept, and the deletion of all others."""

import re
import shutil
from collections.abc import Callable
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.checkpoints.manifests import Manifests

# What Orbax calls the folder of a step until it is whole.
_HALF_WRITTEN = re.compile(r'\d+\.orbax-checkpoint-tmp')


class Retention:
  """Keeps the newest checkpoints, and some for good. Process 0 alone calls it.

  We delete by ourselves, because Orbax deletes old checkpoints before the new
  one is committed.
  """

  def __init__(
    self,
    manifests: Manifests,
    *,
    max_to_keep: int | None,
    keep_interval_seconds: float | None,
    clock: Callable[[], float],
  ):
    """Deletes nothing yet; the arguments are as of `Checkpointer`.

    Args:
      manifests: of the folder.
      max_to_keep: how many of the newest are kept.
      keep_interval_seconds: how much later one comes that is kept for good.
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
    self._clock = clock

  def of_new(self, step: int) -> dict[str, Any]:
    """Returns what a manifest says of how long its checkpoint is kept.

    `kept_since` is when the last checkpoint was saved that is kept for good;
    until there is one, when the first of the run was.

    Args:
      step: of the checkpoint, which is to be committed.
    """
    now = self._clock()
    since = now
    earlier = [s for s in self._manifests.steps() if s < step]
    if earlier:
      since = self._manifests.read(earlier[-1]).get('kept_since', now)
    interval = self._keep_interval_seconds
    kept = interval is not None and now - since >= interval
    return {'kept': kept, 'kept_since': now if kept else since}

  def make_room(self, step: int):
    """Deletes what an earlier run left for a step that is saved again."""
    files = self._manifests.files(step)
    if files.exists():
      logging.warning(
        'deleting %s, which an earlier run left, to save step %d again',
        files,
        step,
      )
      self._manifests.delete(step)

  def prune(self, newest: int):
    """Deletes what is too old, and what `newest` has superseded."""
    committed = self._manifests.steps()
    later = [step for step in committed if step > newest]
    for step in later:
      logging.warning(
        'deleting the checkpoint of step %d: the run continued from an'
        ' earlier one, and now saved step %d',
        step,
        newest,
      )
    earlier = [step for step in committed if step <= newest]
    old = earlier[: -self._max_to_keep] if self._max_to_keep else []
    old = [step for step in old if not self._manifests.read(step).get('kept')]
    for step in later + old:
      try:
        self._manifests.delete(step)
      except OSError as e:
        logging.warning('cannot delete all of checkpoint %d: %s', step, e)
    for path in self._manifests.directory.iterdir():
      if _HALF_WRITTEN.fullmatch(path.name):
        logging.info('deleting %s, which a killed run left', path)
        shutil.rmtree(path, ignore_errors=True)
