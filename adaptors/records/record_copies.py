"""Copies of some records of an input, in a temporary folder.

Lingvo's readers read whole files. So a host that reads some records of a file,
because others read the rest or some are damaged, gets a file of these.
"""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence

from absl import logging

from adaptors import lingvo_runtime
from adaptors.records import record_files, temporary_folders
from pax_compat import errors

# Other programs need disk space as well.
_SHARE_OF_FREE = 0.9

# The prefix of folder names.
_NAME = 'lingvo_records'


class RecordCopies:
  """A folder of copies, made with the first copy and removed by `close`.

  It is also removed when the process exits. If a process is killed, the next
  one on the machine removes its folder.
  """

  def __init__(self, name: str):
    """Makes nothing yet; removes the folders of killed processes.

    Args:
      name: of the input, in messages.
    """
    self._name = name
    self._files = 0
    self._owned: temporary_folders.OwnedFolder | None = None
    self._origins: dict[str, _Origin] = {}
    temporary_folders.remove_abandoned(_NAME)

  @property
  def folder(self) -> str | None:
    """The path of the folder; None before the first copy."""
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
    """Copies the records of one reader that a host reads.

    Readable record i of all files belongs to host i modulo `hosts`. A file
    without such a record is left out; one that a host reads as a whole is not
    copied.

    Args:
      paths: the reader's files, in order.
      file_type: one of `record_files.FORMATS`.
      damaged: the scans of damaged files, by path.
      hosts: number of hosts that share the records.
      host: the index of this host.

    Returns:
      The paths to read.

    Raises:
      UserError: there are fewer records than hosts, or the disk is full.
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
        ' sets the folder), at least as many files as hosts, or'
        ' split_records=False, with which hosts see common examples'
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
    """Removes the folder; close its readers before."""
    if self._owned is not None:
      self._owned.remove()
      _folders.discard(self._owned)
      self._origins.clear()
      self._owned = None

  def origin(self, path: str, index: int) -> tuple[str, int]:
    """Returns the original file of a record, and its index there.

    Args:
      path: a file, perhaps a copy.
      index: of the record in it.
    """
    found = self._origins.get(path)
    if found is None:
      return path, index
    original = found.first + index * found.step
    lost = found.known.damages if found.known else ()
    for damage in lost:  # In order.
      original += damage.record <= original
    return found.path, original


# The folders to remove when the process exits.
_folders: set[temporary_folders.OwnedFolder] = set()


def remove_all():
  """Removes all folders, when the process exits.

  A reader whose files vanish ends the process: close readers before.
  """
  for folder in _folders:
    folder.remove()


@dataclasses.dataclass(frozen=True)
class _Origin:
  """The origin of the records of a copy.

  Attributes:
    path: the original file.
    known: its scan; None if all records are readable.
    first: index of the first copied record among the readable ones.
    step: distance to the next one.
  """

  path: str
  known: record_files.Scan | None
  first: int
  step: int
