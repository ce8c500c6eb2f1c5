"""Which files, or records, of a Lingvo input each host reads.

Lingvo's readers of records read all files on every host, in another order where
the seeds differ, so that hosts see the same examples now and then. Hosts that
read different files never do. Where there are fewer files than hosts, each gets
files of its own records.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import logging

from adaptors import (
  damaged_records,
  record_copies,
  record_files,
)
from adaptors.lingvo_input import (
  generator_kinds,
  params_checks,
)
from pax_compat import errors

# What has a meaning of its own in a pattern, and so must not be in a path.
_SPECIAL = set(',;@*?[')


@dataclasses.dataclass
class _Reader:
  """One of the readers of an input.

  Attributes:
    node: the Params that have its pattern.
    position: which of the patterns of `node` it is.
    entry: the pattern, such as `text:/a/b*,/a/c*`.
    paths: its files.
  """

  node: Any
  position: int
  entry: str
  paths: list[str]

  @property
  def file_type(self) -> str:
    return params_checks.split_type(self.entry)[0]

  @property
  def can_be_copied(self) -> bool:
    return self.file_type in record_files.FORMATS


class HostRecords:
  """What one host reads: files, and copies of records where need be.

  Attributes:
    copies: the copies.
  """

  def __init__(
    self,
    name: str,
    params: Any,
    *,
    hosts: int,
    host: int,
    split_records: bool,
    skip_bad_records: bool,
    bytes_to_check: int | None,
  ):
    """Leaves an input the files of one host, where there are enough of them.

    Of each reader's files, in the order of their names, the i-th is of host i
    modulo `hosts`. What is done is logged. Then the files are checked.

    Args:
      name: how messages call the input.
      params: Lingvo Params; changed. Those of a tf.data input are not: it is
        told which host it is for.
      hosts: how many read.
      host: which of them is asked.
      split_records: whether hosts share the records of a reader with fewer
        files than hosts; copies are made by `prepare`.
      skip_bad_records: whether damaged records are left out.
      bytes_to_check: how many bytes are checked for damage; None for all.

    Raises:
      UserError: a pattern matches no file, or a record is damaged.
    """
    self._name = name
    self._hosts = hosts
    self._host = host
    self._split_records = split_records
    self._damaged: Mapping[str, record_files.Scan] = {}
    self._shared: list[_Reader] = []
    self._copied: dict[int, list[str]] | None = None
    self.copies = record_copies.RecordCopies(name)
    self._files: list[str] = []
    if generator_kinds.is_tf_data(params):
      self._files = [p for r in _readers(name, params) for p in r.paths]
      return
    if hosts > 1:
      self._split(_readers(name, params))
    self._damaged = damaged_records.check_files(
      name,
      [(r.file_type, r.paths) for r in _readers(name, params)],
      skip=skip_bad_records,
      bytes_to_check=bytes_to_check,
    )

  def _split(self, readers: list[_Reader]):
    """Splits by file where that can be; notes what is left."""
    own = {}
    for reader in readers:
      is_plain = not any(_SPECIAL & set(p) for p in reader.paths)
      if len(reader.paths) >= self._hosts and is_plain:
        own[id(reader)] = reader.paths[self._host :: self._hosts]
      elif self._split_records and reader.can_be_copied:
        self._shared.append(reader)
      elif reader.paths:
        logging.warning(
          '%s: each of %d hosts reads all %d files, in an order of its own, and'
          ' they will see common examples; with as many files as hosts they do'
          ' not',
          self._name,
          self._hosts,
          len(reader.paths),
        )
    if own:
      by_file = [r for r in readers if id(r) in own]
      logging.info(
        '%s: host %d of %d reads %d of %d files',
        self._name,
        self._host,
        self._hosts,
        sum(map(len, own.values())),
        sum(len(r.paths) for r in by_file),
      )
      _set_paths(readers, own)
    for reader in self._shared:
      logging.info(
        '%s: host %d of %d reads one of every %d records of %d files, as there'
        ' are fewer files than hosts',
        self._name,
        self._host,
        self._hosts,
        self._hosts,
        len(reader.paths),
      )

  def prepare(self, params: Any) -> Any:
    """Sets the copies as the files of those that are read only in part.

    They are made the first time.

    Args:
      params: a copy of those of the input; changed.

    Returns:
      `params`.

    Raises:
      UserError: there is no room, or there are fewer records than hosts.
    """
    if not self._shared and not self._damaged:
      return params
    readers = _readers(self._name, params)
    if self._copied is None:
      self._copied = self._copy(readers)
    _set_paths(readers, {id(readers[i]): p for i, p in self._copied.items()})
    return params

  def _copy(self, readers: list[_Reader]) -> dict[int, list[str]]:
    """Returns the files that are to be read in place of those of readers."""
    shared = {(reader.entry, tuple(reader.paths)) for reader in self._shared}
    copied = {}
    for index, reader in enumerate(readers):
      is_shared = (reader.entry, tuple(reader.paths)) in shared
      if is_shared or any(p in self._damaged for p in reader.paths):
        copied[index] = self.copies.of(
          reader.paths,
          reader.file_type,
          damaged=self._damaged,
          hosts=self._hosts if is_shared else 1,
          host=self._host if is_shared else 0,
        )
    return copied

  def explain(self, error: Exception) -> errors.UserError | None:
    """Returns an error that names the record over which tf.data failed.

    Args:
      error: what a tf.data input raised.
    """
    if not self._files:
      return None
    found = damaged_records.explain(error, self._files)
    return found and errors.UserError(f'{self._name}: {found}')

  def close(self):
    """Removes the copies; nothing must read them any more."""
    self.copies.close()
    self._copied = None


def _readers(name: str, params: Any) -> list[_Reader]:
  return [
    _Reader(node, i, entry, params_checks.files_of(name, entry))
    for node, entries in params_checks.readers(params)
    for i, entry in enumerate(entries)
  ]


def _set_paths(readers: list[_Reader], own: Mapping[int, list[str]]):
  """Sets the files of readers, by their `id`; the others keep theirs."""
  nodes = {id(reader.node): reader.node for reader in readers}
  for key, node in nodes.items():
    mine = [r for r in readers if id(r.node) == key]
    if any(id(r) in own for r in mine):
      entries = [
        _as_entry(r.entry, own[id(r)]) if id(r) in own else r.entry
        for r in mine
      ]
      _set_entries(node, entries)


def _as_entry(entry: str, paths: list[str]) -> str:
  """Returns an entry of the same type with these files."""
  rest = params_checks.split_type(entry)[1]
  return entry.removesuffix(rest) + ','.join(paths)


def _set_entries(params: Any, entries: list[str]):
  """Sets the patterns of one data source, weights and the like kept."""
  pattern = params.file_pattern
  if getattr(params, 'file_pattern_prefix', ''):
    params.file_pattern_prefix = ''
  if isinstance(pattern, str):
    [params.file_pattern] = entries
  elif len(entries) < len(pattern):  # One reader has them all.
    params.file_pattern = entries
  else:
    params.file_pattern = [
      own if isinstance(old, str) else type(old)([own, *old[1:]])
      for old, own in zip(pattern, entries, strict=True)
    ]
