"""Copies of a part of the records of an input, in a temporary folder.

Lingvo's readers read whole files. So a host that is to read some records of a
file, as others read the rest, or as some are damaged, gets files with these.
"""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence

from absl import logging

from adaptors import lingvo_runtime
from adaptors.records import record_files, temporary_folders
from pax_compat import errors

# What else is on the disk needs room, too.
_SHARE_OF_FREE = 0.9

# What the names of folders begin with.
_NAME = 'lingvo_records'


class RecordCopies:
  """A folder of copies, made with the first of them and removed by `close`.

  Its folder is removed at the end of the process, too. Where a process is
  killed, the next one on the machine removes it.
  """

  def __init__(self, name: str):
    """Makes nothing yet, and removes what killed processes have left.

    Args:
      name: how messages call the input.
    """
    self._name = name
    self._files = 0
    self._owned: temporary_folders.OwnedFolder | None = None
    self._origins: dict[str, _Origin] = {}
    temporary_folders.remove_abandoned(_NAME)

  @property
  def folder(self) -> str | None:
    """Where the folder is; None before the first copy."""
    return self._owned and self._owned.path

  def of(
    self,
    paths: Sequence[str],
    file_type: str,
    *,
    damaged: Mapping[str, record_files.Scan],
    hosts: int = 1,
    host: int = 0,
  ) -> list[str]:
    """Copies the records of one reader that a host is to read.

    Of the records that can be read, the i-th of all files is of host i modulo
    `hosts`. A file with none of them is left out, and one that a host reads as
    it is stays where it is.

    Args:
      paths: the reader's files, in order.
      file_type: one of `record_files.FORMATS`.
      damaged: what damaged files hold, by path.
      hosts: how many share the records.
      host: which of them this is.

    Returns:
      The paths of what to read.

    Raises:
      UserError: there are fewer records than hosts, or there is no room.
    """
    copied = [p for p in paths if hosts > 1 or p in damaged]
    if not copied:
      return list(paths)
    self._make_room(copied, hosts)
    copies, seen, kept, size = [], 0, 0, 0
    for path in paths:
      if path not in copied:
        copies.append(path)
        continue
      skipped = (host - seen) % hosts
      copy, read, written = self._copy(
        path, file_type, damaged.get(path), skipped, hosts
      )
      seen, kept = seen + read, kept + written
      if written:
        copies.append(copy)
        size += os.path.getsize(copy)
    if seen < hosts and hosts > 1:
      raise errors.UserError(
        f'{self._name}: {", ".join(paths)} have {seen} records for {hosts}'
        ' hosts; expected at least one for each'
      )
    logging.info(
      '%s: copied %d of %d records of %d files, %d bytes, to %s',
      self._name,
      kept,
      seen,
      len(copied),
      size,
      self.folder,
    )
    return copies

  def _make_room(self, paths: Sequence[str], hosts: int):
    gfile = lingvo_runtime.tensorflow().io.gfile
    if self._owned is None:
      self._owned = temporary_folders.OwnedFolder(_NAME)
      _folders.add(self._owned)
    needed = sum(gfile.stat(p).length for p in paths) // hosts
    free = shutil.disk_usage(self.folder).free
    logging.info(
      '%s: copying records of %d files, about %d bytes, to %s',
      self._name,
      len(paths),
      needed,
      self.folder,
    )
    if needed > free * _SHARE_OF_FREE:
      raise errors.UserError(
        f'{self._name}: about {needed} bytes of records are to be copied to'
        f' {self.folder}, which has {free} bytes free; expected more (TMPDIR'
        ' says where), at least as many files as hosts, or split_records=False,'
        ' with which hosts see common examples'
      )

  def _copy(self, path, file_type, known, skipped, hosts):
    """Returns the copy's path, how many records were read, and written."""
    copy = f'{self.folder}/{self._files:05d}'
    self._files += 1
    self._origins[copy] = _Origin(path, known, skipped, hosts)
    read = written = 0
    with record_files.writing(copy, file_type) as out:
      for piece in record_files.records(path, file_type, known):
        if read % hosts == skipped:
          out.write(piece)
          written += 1
        read += 1
    return copy, read, written

  def close(self):
    """Removes the folder; nothing must read it any more."""
    if self._owned is not None:
      self._owned.remove()
      _folders.discard(self._owned)
      self._origins.clear()
      self._owned = None

  def origin(self, path: str, index: int) -> tuple[str, int]:
    """Returns the file that a record comes from, and its number there.

    Args:
      path: a file, perhaps a copy.
      index: the number of the record in it.
    """
    found = self._origins.get(path)
    if found is None:
      return path, index
    place = found.first + index * found.step
    lost = found.known.damages if found.known else ()
    for damage in lost:  # In order.
      place += damage.record <= place
    return found.path, place


# The folders that are to be removed when the process ends.
_folders: set[temporary_folders.OwnedFolder] = set()


def remove_all():
  """Removes what is left at the end of a process.

  A reader whose files vanish ends the process at once: close readers before.
  """
  for folder in _folders:
    folder.remove()


@dataclasses.dataclass(frozen=True)
class _Origin:
  """Where the records of a copy come from.

  Attributes:
    path: the file.
    known: which of its records can be read; None for all.
    first: which of these is the first in the copy.
    step: and how far the next one is from it.
  """

  path: str
  known: record_files.Scan | None
  first: int
  step: int
