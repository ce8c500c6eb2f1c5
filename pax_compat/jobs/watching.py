"""The checkpoints of a run, as another process sees them come and go."""

import json
import os
import zlib
from typing import Any

import orbax.checkpoint as ocp

from pax_compat import errors
from pax_compat.checkpoints.manifests import Manifests
from pax_compat.runs import job_dir
from pax_compat.trainer import actions


class Watch:
  """The committed checkpoints in a folder. For process 0 only.

  Nothing is created or changed in the folder, which need not exist yet.

  Attributes:
    directory: the folder.
  """

  directory: Any

  def __init__(self, directory: str | os.PathLike):
    """Reads nothing.

    Args:
      directory: the folder of the checkpoints.
    """
    self._manifests = Manifests(job_dir.checked_path(directory))
    self.directory = self._manifests.directory

  def steps(self) -> list[int]:
    """Returns the committed steps in ascending order."""
    return self._manifests.steps()

  def digest(self, step: int) -> str:
    """Returns a digest of a checkpoint's files; '' if it is not committed.

    Two checkpoints of a step differ in it, even with the same numbers.
    """
    files = self._manifests.read(step).get('files')
    if files is None:
      return ''
    return f'{zlib.crc32(json.dumps(files, sort_keys=True).encode()):08x}'

  def exists(self, step: int) -> bool:
    """Returns whether a checkpoint is committed and has files."""
    return step in self.steps() and self._manifests.files(step).exists()

  def problem(self, step: int) -> str | None:
    """Returns what is wrong with a checkpoint's files; None if nothing is."""
    try:
      self._manifests.require_intact(step)
    except (errors.UserError, OSError) as e:
      return str(e)
    return None

  def ends_training(self, step: int, *, last_step: int) -> bool:
    """Returns whether training ended with a checkpoint.

    Args:
      step: of the checkpoint.
      last_step: the task's last step, for checkpoints that cannot be read or
        that do not know it.
    """
    found = self._manifests.read(step).get('amended', {})
    if actions.TRAINING_ENDED not in found:
      found = self._extra(step)
    return bool(found.get(actions.TRAINING_ENDED, step >= last_step))

  def _extra(self, step: int) -> dict[str, Any]:
    """Returns what was saved with a checkpoint; {} if it cannot be read."""
    path = self._manifests.files(step) / 'about'
    try:
      return ocp.JsonCheckpointHandler().restore(path)['extra']
    except (OSError, ValueError, KeyError, TypeError):
      return {}
