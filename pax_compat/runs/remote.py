"""Folders in Google Cloud Storage, `gs://bucket/folder`.

Files are read and written with `etils.epath`, through the package `gcsfs`;
Orbax writes the arrays of checkpoints with TensorStore's own driver. TensorFlow
is not used, even if it is installed. Credentials are Google's application
default ones.
"""

import importlib.util
import os
import pathlib
from typing import Any

from pax_compat import errors

_SEPARATOR = '://'
# Schemes that `etils.epath` knows, but that Orbax cannot write arrays to.
_NOT_WRITTEN = ('s3', 'az', 'hf')


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


def listing(folder: Any) -> dict[str, dict[str, Any]]:
  """Returns size in bytes and CRC-32C of all files below a remote folder.

  Both come from the storage service, which computes the checksum of what it
  stores; no file is read.

  Args:
    folder: as `path_of` returns it.

  Returns:
    `{'bytes': ..., 'crc32c': ...}` by relative path; empty if there is no such
    folder.
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
