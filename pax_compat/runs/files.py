"""Files of a run, local or remote, and the cache folder of the user."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

from pax_compat import errors
from pax_compat.runs import remote

# What the file system of a run may lack, not what a program does wrong.
_SYSTEM_ERRORS = (
  errno.ENOSPC,
  errno.EDQUOT,
  errno.EFBIG,
  errno.EROFS,
  errno.EACCES,
  errno.EPERM,
  errno.EIO,
  errno.ESTALE,
  errno.ENOTDIR,
)
# Something else is where a run has its file or folder.
_MISPLACED = {
  errno.EEXIST: 'it is a file; expected a folder',
  errno.EISDIR: 'it is a folder; expected a file',
}


def system_error(error: BaseException | None) -> str | None:
  """Returns the reason of an error of the file system, such as a full disk.

  Libraries have errors of their own, which have it in their text.

  Args:
    error: any error; those that caused it are examined, too.
  """
  for one in _chain(error):
    if isinstance(one, OSError) and one.errno in _SYSTEM_ERRORS:
      file = f' ({one.filename})' if one.filename else ''
      return f'{os.strerror(one.errno)}{file}'
    for number in _SYSTEM_ERRORS:
      if os.strerror(number).lower() in str(one).lower():
        return os.strerror(number)
  return None


def is_full_disk(error: BaseException | None) -> bool:
  """Whether an error, or one that caused it, is that of a full disk."""
  full = errno.ENOSPC, errno.EDQUOT
  return any(getattr(one, 'errno', None) in full for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  """Yields an error and those that caused it."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def parse_json(text: str | bytes) -> Any:
  """Returns the value of a JSON text.

  Raises:
    ValueError: it is not valid, or nested too deeply.
  """
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError('JSON that is nested too deeply') from None


@contextlib.contextmanager
def explained(folder: Any) -> Iterator[None]:
  """Within it, errors of the file system of a run's folder are UserErrors.

  Args:
    folder: of the run; errors of files elsewhere are not changed.

  Raises:
    UserError: the disk is full, or fails, or may not be written.
  """
  try:
    yield
  except OSError as e:
    known = (*_SYSTEM_ERRORS, *_MISPLACED)
    if e.errno not in known or not _is_within(e.filename, folder):
      raise
    reason = _MISPLACED.get(e.errno, os.strerror(e.errno))
    raise errors.UserError(
      f'{e.filename or folder} cannot be used: {reason}. Earlier'
      ' checkpoints are unharmed. When there is a remedy, the same command'
      ' continues'
    ) from e


def _is_within(file: Any, folder: Any) -> bool:
  return file is None or os.fspath(folder) in str(file)


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


def is_there(path: Any) -> bool:
  """Whether there is a file or folder, or a link, perhaps to nothing."""
  if remote.is_remote(path):
    return path.exists()
  return os.path.lexists(path)


def delete_folder(folder: Any) -> None:
  """Deletes a folder with its content.

  Raises:
    OSError: it does not exist, or cannot be deleted completely.
  """
  if remote.is_remote(folder):
    remote.delete(folder)
  else:
    shutil.rmtree(folder)


def read_bytes(path: Any) -> bytes:
  """Returns the content of a file that `replace` may replace at any time.

  Args:
    path: the file, local or remote.

  Raises:
    OSError: it cannot be read.
  """
  if remote.is_remote(path):
    return remote.read_bytes(path)
  return path.read_bytes()


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


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a new file beside a local one, which replaces it at the end.

  For files that are too large for `replace`. Several processes may write the
  same file at once.

  Args:
    path: the file; its folder is created. If an error ends the context, an
      earlier file stays as it is.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  half = path.with_name(f'.{path.name}.{uuid.uuid4().hex[:8]}.half')
  try:
    yield half
    os.replace(half, path)
  finally:
    half.unlink(missing_ok=True)
