"""Checksums of the files of a checkpoint.

Those of local files are computed. Those of remote files are the storage
service's, so that nothing is read.
"""

import concurrent.futures
import os
import pathlib
import stat
import zlib
from collections.abc import Iterable
from typing import Any

from pax_compat.runs import remote

_THREADS = 8
_CHUNK_BYTES = 1 << 22


def of_files(
  folder: Any, names: Iterable[str] | None = None
) -> dict[str, dict | None]:
  """Returns size in bytes and checksum of files, by relative path.

  The checksum is the CRC-32, of remote files the CRC-32C. A file that cannot be
  read has the reason instead, as `error`.

  Args:
    folder: the folder of the files.
    names: relative paths; None for all files. The value of a file that does not
      exist is None.
  """
  if remote.is_remote(folder):
    stored = remote.listing(folder)
    return stored if names is None else {n: stored.get(n) for n in names}
  if names is None:
    names = sorted(
      path.relative_to(folder).as_posix()
      for path in folder.rglob('*')
      if path.is_file()
    )
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    found = pool.map(lambda name: _of_file(folder / name), names)
    return dict(zip(names, found, strict=True))


def _of_file(path: pathlib.Path) -> dict | None:
  size = crc = 0
  try:
    if not stat.S_ISREG(os.stat(path).st_mode):  # To open a pipe would block.
      return {'error': 'not a file'}
    with open(path, 'rb') as f:
      while chunk := f.read(_CHUNK_BYTES):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
  except FileNotFoundError:
    return None
  except OSError as e:
    return {'error': e.strerror or str(e)}
  return {'bytes': size, 'crc32': f'{crc:08x}'}


def describe(about: dict | None) -> str:
  """Returns a description of a value of `of_files`."""
  if about is None:
    return 'file not found'
  if 'error' in about:
    return about['error']
  kinds = {'crc32': 'CRC-32', 'crc32c': 'CRC-32C'}
  sums = [f'{label} {about[k]}' for k, label in kinds.items() if k in about]
  return f'{about["bytes"]} bytes with {" and ".join(sums)}'
