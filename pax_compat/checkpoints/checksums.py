"""Checksums of the files of a checkpoint."""

import concurrent.futures
import pathlib
import zlib
from collections.abc import Iterable

_THREADS = 8
_CHUNK_BYTES = 1 << 22


def of_files(
  folder: pathlib.Path, names: Iterable[str] | None = None
) -> dict[str, dict | None]:
  """Returns size in bytes and CRC-32 of files, by relative path.

  Args:
    folder: the folder of the files.
    names: relative paths; None for all files. The value of a file that does not
      exist is None.
  """
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
    with open(path, 'rb') as f:
      while chunk := f.read(_CHUNK_BYTES):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
  except FileNotFoundError:
    return None
  return {'bytes': size, 'crc32': f'{crc:08x}'}


def describe(about: dict | None) -> str:
  """Returns a description of a value of `of_files`."""
  if about is None:
    return 'no such file'
  return f'{about["bytes"]} bytes with CRC-32 {about["crc32"]}'
