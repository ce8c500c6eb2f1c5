"""Atomic writes of files, and the cache folder of the user."""

import contextlib
import os
import pathlib
import tempfile


def user_cache() -> pathlib.Path:
  """Returns the cache folder, which may not exist yet.

  It is `$XDG_CACHE_HOME/pax_compat` or `~/.cache/pax_compat`.
  """
  root = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(root) / 'pax_compat'


def replace(path: pathlib.Path, content: bytes) -> None:
  """Writes a file atomically: readers see the old or the new content.

  Several processes may write the same file at once.

  Args:
    path: the file; its folder exists. Old content is lost.
    content: the new content.

  Raises:
    OSError: it cannot be written; the old file is unchanged.
  """
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
