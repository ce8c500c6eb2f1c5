"""Temporary folders that do not outlive their process, however it ends.

A process that is killed removes nothing. So each folder is locked by the
process that made it, as long as that lives, and other processes of the machine
remove what nobody has locked.
"""

import contextlib
import fcntl
import glob
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator

from absl import logging


class OwnedFolder:
  """A folder of this process, there until `remove`.

  Attributes:
    path: where it is.
  """

  def __init__(self, name: str):
    """Makes it in the folder for temporary files.

    Args:
      name: what its name begins with.
    """
    self.path = tempfile.mkdtemp(prefix=f'new_{_prefix(name)}')
    self._lock: int | None = os.open(self.path, os.O_RDONLY)
    with contextlib.suppress(OSError):  # Without locks, nobody else removes it.
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # Only now it is one that others look at.
      folder, base = os.path.split(self.path)
      path = os.path.join(folder, base.removeprefix('new_'))
      os.rename(self.path, path)
      self.path = path

  def remove(self):
    """Removes it with all that is in it; no harm if that was done."""
    shutil.rmtree(self.path, ignore_errors=True)
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None


def remove_abandoned(name: str):
  """Removes the folders that killed processes of this machine have left.

  Args:
    name: what their names begin with.
  """
  folder = glob.escape(tempfile.gettempdir())
  for path in glob.glob(f'{folder}/{glob.escape(_prefix(name))}*'):
    with contextlib.suppress(OSError), _locked(path):
      shutil.rmtree(path)
      logging.info('removed %s: the process that made it is gone', path)


def _prefix(name: str) -> str:
  # A folder may be shared with machines that do not see one another's locks.
  return f'{name}_{platform.node()}_'


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
  """Holds the lock of a folder; raises an OSError where somebody else does."""
  lock = os.open(path, os.O_RDONLY)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  finally:
    os.close(lock)
