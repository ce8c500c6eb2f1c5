"""Files of a run, local or remote, and the cache folder of the user."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from typing import Any

from pax_compat.runs import remote


def user_cache() -> pathlib.Path:
  """Returns the cache folder, which may not exist yet.

  It is `$XDG_CACHE_HOME/pax_compat` or `~/.cache/pax_compat`.
  """
  root = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(root) / 'pax_compat'


def make_folder(folder: Any) -> None:
  """Creates a folder and its parents; remote ones exist with their files."""
  if not remote.is_remote(folder):
    folder.mkdir(parents=True, exist_ok=True)


def children(folder: Any) -> list[Any]:
  """Returns the paths of what a folder contains; [] if it does not exist."""
  try:
    return list(folder.iterdir())
  except FileNotFoundError:
    return []


def delete_folder(folder: Any) -> None:
  """Deletes a folder with its content.

  Raises:
    OSError: it does not exist, or cannot be deleted completely.
  """
  if remote.is_remote(folder):
    remote.delete(folder)
  else:
    shutil.rmtree(folder)


def replace(path: Any, content: bytes) -> None:
  """Writes a file atomically: readers see the old or the new content.

  Several processes may write the same file at once.

  Args:
    path: the file, local or remote; its folder exists. Old content is lost.
    content: the new content.

  Raises:
    OSError: it cannot be written; the old file is unchanged.
  """
  if remote.is_remote(path):
    path.write_bytes(content)
    return
  fd, temporary = tempfile.mkstemp(prefix=f'.{path.name}.', dir=path.parent)
  try:
    with open(fd, 'wb') as f:
      f.write(content)
      f.flush()
      os.fsync(f.fileno())
    os.chmod(temporary, 0o644)  # mkstemp makes it private
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(temporary)
    raise
