"""Folders in Google Cloud Storage, `gs://bucket/folder`.

Files are read and written with `etils.epath`, through the package `gcsfs`;
Orbax writes the arrays of checkpoints with TensorStore's own driver. TensorFlow
is not used, even if it is installed. Credentials are Google's application
default ones.
"""

import contextlib
import importlib.util
import logging
import os
import pathlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

from pax_compat import errors

_SEPARATOR = '://'
# Schemes that `etils.epath` knows, but that Orbax cannot write arrays to.
_NOT_WRITTEN = ('s3', 'az', 'hf')
# gcsfs tries for longer, and may wait for an answer without a limit.
_SECONDS_TO_ANSWER = 30.0
_answered: set[str] = set()


def is_remote(path: str | os.PathLike) -> bool:
  """Whether a path is a URL, such as `gs://bucket/run`."""
  return _SEPARATOR in os.fspath(path)


def path_of(url: str | os.PathLike) -> Any:
  """Returns the `etils.epath.Path` of a URL; nothing is read or written.

  Args:
    url: `gs://bucket/folder`.

  Raises:
    UserError: it is a URL of another kind, or `gcsfs` is not installed.
  """
  url = os.fspath(url)
  scheme, _, rest = url.partition(_SEPARATOR)
  if scheme != 'gs':
    reason = (
      f'Orbax does not write checkpoints to {scheme}://'
      if scheme in _NOT_WRITTEN
      else f'the scheme {scheme}:// is unknown'
    )
    raise errors.UserError(
      f'{url} cannot be used: {reason}; expected gs://BUCKET/FOLDER, or a path'
      ' in a mounted file system, such as /mnt/bucket/run1'
    )
  if not rest.strip('/'):
    raise errors.UserError(f'{url}: expected gs://BUCKET/FOLDER')
  if importlib.util.find_spec('gcsfs') is None:
    raise errors.UserError(
      f'{url} needs the package gcsfs, which is not installed; expected'
      " pip install 'pax-compat[gcs]', or a path in a mounted file system, such"
      ' as /mnt/bucket/run1'
    )
  return _epath().Path(url.rstrip('/'))


def refuse_mangled(path: pathlib.PurePath):
  """Raises a UserError for a `pathlib.Path` that was made from a URL.

  `pathlib.Path('gs://b/run')` is the relative path `gs:/b/run`.
  """
  if path.parts and path.parts[0] in ('gs:', *(f'{s}:' for s in _NOT_WRITTEN)):
    raise errors.UserError(
      f'{path} is a URL that became a local path; expected the text'
      f' {path.parts[0]}//...'
    )


def require_answer(path: Any) -> None:
  """Asks for a remote folder, which need not exist; once for each bucket.

  Args:
    path: as `path_of` returns it; nothing is asked if it is local.

  Raises:
    UserError: the storage service does not answer, or refuses access.
  """
  bucket = '/'.join(os.fspath(path).split('/')[:3])
  if not is_remote(path) or bucket in _answered:
    return
  done: queue.SimpleQueue = queue.SimpleQueue()

  def ask():
    try:
      files, root = _file_system(path)
      files.info(root)
    except FileNotFoundError:
      done.put(None)  # It will be made.
    except Exception as e:  # noqa: BLE001 (of the libraries of the service)
      done.put(e)
    else:
      done.put(None)

  with _last_message() as messages:
    threading.Thread(target=ask, name='first answer', daemon=True).start()
    try:
      error = done.get(timeout=_SECONDS_TO_ANSWER)
    except queue.Empty:
      last = f' ({messages[-1]})' if messages else ''
      raise _unusable(
        path,
        'the storage service has not answered within'
        f' {_SECONDS_TO_ANSWER:.0f} seconds{last}',
      ) from None
  if error is not None:
    raise _unusable(path, errors.one_line(error)) from error
  _answered.add(bucket)


def _unusable(path: Any, reason: str) -> errors.UserError:
  return errors.UserError(
    f'{path} cannot be used: {reason}; expected a bucket that this machine can'
    ' reach, and the right to use it (gcloud auth application-default login)'
  )


@contextlib.contextmanager
def _last_message() -> Iterator[list[str]]:
  """Yields what gcsfs logs of its tries, which goes nowhere else."""
  messages: list[str] = []

  def keep(record: logging.LogRecord):
    _, found, error = record.getMessage().partition('exception: ')
    if found:
      messages.append(' '.join(error.split())[:300])

  handler = logging.Handler()
  handler.emit = keep
  logger = logging.getLogger('gcsfs')
  before = logger.level, logger.propagate
  logger.addHandler(handler)
  # Each try that failed is at DEBUG.
  logger.setLevel(logging.DEBUG)
  logger.propagate = False
  try:
    yield messages
  finally:
    logger.removeHandler(handler)
    logger.setLevel(before[0])
    logger.propagate = before[1]


def listing(folder: Any) -> dict[str, dict[str, Any]]:
  """Returns size in bytes and CRC-32C of all files below a remote folder.

  Both come from the storage service, which computes the checksum of what it
  stores; no file is read.

  Args:
    folder: as `path_of` returns it.

  Returns:
    `{'bytes': ..., 'crc32c': ...}` by relative path; empty if it is not
    a folder.
  """
  files, root = _file_system(folder)
  found = files.find(root, detail=True)
  return {
    name.removeprefix(f'{root}/'): {
      'bytes': about['size'],
      'crc32c': about.get('crc32c', ''),
    }
    for name, about in sorted(found.items())
    if name != root and not name.endswith('/')
  }


def upload(source: pathlib.Path, target: Any):
  """Copies a local file to a remote path, whose content is replaced at once."""
  files, path = _file_system(target)
  files.put_file(os.fspath(source), path)


def download(source: Any, target: pathlib.Path) -> bool:
  """Copies a remote file to a local path; returns False if it is not there."""
  files, path = _file_system(source)
  try:
    files.get_file(path, os.fspath(target))
  except FileNotFoundError:
    target.unlink(missing_ok=True)
    return False
  return True


def delete(path: Any):
  """Deletes a remote file or folder, if there is one."""
  files, root = _file_system(path)
  try:
    files.rm(root, recursive=True)
  except FileNotFoundError:
    return


def read_bytes(path: Any) -> bytes:
  """Returns the content of a remote file, by one request.

  To open a file asks for its size first: longer content that replaces it before
  it is read would be cut off.
  """
  files, name = _file_system(path)
  return files.cat_file(name)


def _file_system(path: Any):
  """Returns the fsspec file system of a path, and the path in it."""
  _epath()
  import fsspec  # Late: only runs in remote folders need it.

  return fsspec.core.url_to_fs(os.fspath(path))


def _epath():
  """Returns `etils.epath`, which does not use TensorFlow."""
  # Read at each access to a file.
  os.environ['EPATH_USE_TF'] = '0'
  import fsspec  # Late: only runs in remote folders need it.
  from etils import epath

  # TensorStore and other hosts write files too, so listings are not cached.
  for name in ('gs', 'gcs'):
    fsspec.config.conf.setdefault(name, {})['use_listings_cache'] = False
  return epath
