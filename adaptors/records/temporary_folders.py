"""Temporary folders that do not outlive their process, even if it is killed.

The process that made a folder locks it as long as it runs. Other processes of
the machine remove folders without a lock.
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
  """A folder of this process, until `remove`.

  Attributes:
    path: of the folder.
  """

  def __init__(self, name: str):
    """Makes it in the folder for temporary files.

    Args:
      name: prefix of its name.
    """
    self.path = tempfile.mkdtemp(prefix=f'new_{_prefix(name)}')
    self._lock: int | None = os.open(self.path, os.O_RDONLY)
    with contextlib.suppress(OSError):  # Without locks, only `remove` does.
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # Other processes find it by its final name only.
      folder, base = os.path.split(self.path)
      path = os.path.join(folder, base.removeprefix('new_'))
      os.rename(self.path, path)
      self.path = path

  def remove(self):
    """Removes it with its contents; later calls do nothing."""
    shutil.rmtree(self.path, ignore_errors=True)
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None


def remove_abandoned(name: str):
  """Removes the folders that killed processes of this machine left.

  Args:
    name: prefix of their names.
  """
  folder = glob.escape(tempfile.gettempdir())
  for path in glob.glob(f'{folder}/{glob.escape(_prefix(name))}*'):
    with contextlib.suppress(OSError), _locked(path):
      shutil.rmtree(path)
      logging.info('removed %s: its process has ended', path)


def _prefix(name: str) -> str:
  # Machines that share a folder may not see each other's locks.
  return f'{name}_{platform.node()}_'


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
  """Holds the lock of a folder; raises an OSError if another process does."""
  lock = os.open(path, os.O_RDONLY)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  finally:
    os.close(lock)
