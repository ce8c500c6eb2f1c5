"""Files, or records, of a Lingvo input that each host reads.

Lingvo's record readers read all files on every host, in different orders if the
seeds differ, so some examples reach several hosts. Hosts that read different
files share none. If there are fewer files than hosts, each host gets files with
its own records.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from adaptors.lingvo_input.checks import generator_kinds, params_checks
from adaptors.records import (
  background_check,
  damaged_records,
  record_copies,
  record_files,
)
from pax_compat import errors

# Characters with a meaning in a pattern; a path must not contain them.
_SPECIAL = set(',;@*?[')


@dataclasses.dataclass
class _Reader:
  """One of the readers of an input.

  Attributes:
    node: the Params that have its pattern.
    position: index of the pattern in `node`.
    entry: the pattern, such as `text:/a/b*,/a/c*`.
    paths: its files.
    file_type: their type, such as 'text'; '' if unknown.
    takes_several: whether several files may replace the pattern; not in a list
      that is mixed within batches.
  """

  node: Any
  position: int
  entry: str
  paths: list[str]
  file_type: str
  takes_several: bool

  @property
  def can_be_copied(self) -> bool:
    fits = self.takes_several or len(self.paths) == 1
    return fits and self.file_type in record_files.FORMATS

  def can_be_split(self, hosts: int) -> bool:
    """Returns whether each host may read some of the files."""
    fits = self.takes_several or len(self.paths) == hosts
    return fits and not any(_SPECIAL & set(p) for p in self.paths)


class HostRecords:
  """The files that one host reads, and copies of records if needed.

  Attributes:
    copies: the copies.
    check: the background check of files that were not checked before.
    num_damaged: number of damaged records in these files; None if damaged
      records are errors.
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
    file_types: Callable[[], Mapping[str, str]] = dict,
  ):
    """Sets the files of one host in the Params, if there are enough files.

    File i of each reader, in the order of names, belongs to host i modulo
    `hosts`. The split is logged. Then the files are checked.

    Args:
      name: of the input, in messages.
      params: Lingvo Params; changed. Those of a tf.data input are not: it
        splits by its infeed context.
      hosts: number of hosts that share the data.
      host: the index of this host.
      split_records: whether hosts share the records of a reader with fewer
        files than hosts; copies are made by `prepare`.
      skip_bad_records: whether damaged records are left out.
      bytes_to_check: number of bytes checked for damage before reading; None
        for all. Files that are copied are always checked.
      file_types: returns the types of files by path; called if a pattern has no
        type.

    Raises:
      UserError: a pattern matches no file, or a record is damaged.
    """
    self._name = name
    self._hosts = hosts
    self._host = host
    self._split_records = split_records
    self._damaged: Mapping[str, record_files.Scan] = {}
    self.check = background_check.BackgroundCheck(name, ())
    self._shared: list[_Reader] = []
    self._copied: dict[int, list[str]] | None = None
    self.copies = record_copies.RecordCopies(name)
    self.num_damaged: int | None = None
    self._ask_types = file_types
    self._files: list[str] = []
    if generator_kinds.is_tf_data(params):
      if skip_bad_records:
        logging.warning(
          '%s reads through tf.data, so skip_bad_records has no effect: a'
          ' damaged record is an error',
          name,
        )
      self._files = [
        path
        for node, entries in params_checks.readers(params)
        for entry in entries
        for path in params_checks.files_of(name, entry)
      ]
      return
    if hosts > 1:
      self._split(self._readers(params))
    checked = damaged_records.check_files(
      name,
      [(r.file_type, r.paths) for r in self._readers(params)],
      skip=skip_bad_records,
      bytes_to_check=None if self._shared else bytes_to_check,
    )
    self._damaged = checked.damaged
    self.check = background_check.BackgroundCheck(name, checked.unchecked)
    if skip_bad_records:
      scans = self._damaged.values()
      self.num_damaged = sum(len(scan.damages) for scan in scans)

  def _readers(self, params: Any) -> list[_Reader]:
    return [
      self._reader(node, i, entry)
      for node, entries in params_checks.readers(params)
      for i, entry in enumerate(entries)
    ]

  def _reader(self, node: Any, position: int, entry: str) -> _Reader:
    paths = params_checks.files_of(self._name, entry)
    file_type = params_checks.split_type(entry)[0]
    if paths and not file_type:
      types = {self._types.get(path, '') for path in paths}
      file_type = types.pop() if len(types) == 1 else ''
    mixed = getattr(node, 'use_within_batch_mixing', False)
    mixed = mixed or bool(getattr(node, 'weights', None))
    return _Reader(node, position, entry, paths, file_type, not mixed)

  @functools.cached_property
  def _types(self) -> Mapping[str, str]:
    return self._ask_types()

  def _split(self, readers: list[_Reader]):
    """Splits by file where possible; keeps the readers to split by record."""
    own = {}
    for reader in readers:
      enough = len(reader.paths) >= self._hosts
      if enough and reader.can_be_split(self._hosts):
        own[id(reader)] = reader.paths[self._host :: self._hosts]
      elif self._split_records and reader.can_be_copied:
        self._shared.append(reader)
      elif reader.paths:
        logging.warning(
          '%s: each of %d hosts reads all %d files, in its own order, so'
          ' some examples reach several hosts; expected at least as many files'
          ' as hosts',
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
    """Replaces files that are read only in part by copies; returns `params`.

    The copies are made by the first call.

    Args:
      params: a copy of the input's Params; changed.

    Raises:
      UserError: the disk is full, or there are fewer records than hosts.
    """
    if not self._shared and not self._damaged:
      return params
    readers = self._readers(params)
    if self._copied is None:
      self._copied = self._copy(readers)
    _set_paths(readers, {id(readers[i]): p for i, p in self._copied.items()})
    return params

  def _copy(self, readers: list[_Reader]) -> dict[int, list[str]]:
    """Returns the files that replace those of readers, by reader index."""
    shared = {(reader.entry, tuple(reader.paths)) for reader in self._shared}
    copied = {}
    for index, reader in enumerate(readers):
      is_shared = (reader.entry, tuple(reader.paths)) in shared
      if is_shared or any(p in self._damaged for p in reader.paths):
        if not reader.can_be_copied:
          raise errors.UserError(
            f'{self._name}: {reader.entry!r} is mixed with others within'
            ' batches, and files cannot be left out of it; expected patterns of'
            ' one file each, or good files'
          )
        copied[index] = self.copies.of(
          reader.paths,
          reader.file_type,
          damaged=self._damaged,
          hosts=self._hosts if is_shared else 1,
          host=self._host if is_shared else 0,
        )
    return copied

  def explain(self, error: Exception) -> errors.UserError | None:
    """Returns an error that names the record at which tf.data failed.

    Args:
      error: raised by a tf.data input.
    """
    if not self._files:
      return None
    found = damaged_records.explain(error, self._files)
    return found and errors.UserError(f'{self._name}: {found}')

  def close(self):
    """Ends the check and removes the copies; close their readers before."""
    self.check.close()
    self.copies.close()
    self._copied = None


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
  """Returns an entry with the same type and these files."""
  rest = params_checks.split_type(entry)[1]
  return entry.removesuffix(rest) + ','.join(paths)


def _set_entries(params: Any, entries: list[str]):
  """Sets the patterns of one data source; weights and the like are kept."""
  pattern = params.file_pattern
  if getattr(params, 'file_pattern_prefix', ''):
    params.file_pattern_prefix = ''
  if isinstance(pattern, str):
    [params.file_pattern] = entries
  elif params_checks.are_joined(params, pattern):  # One reader has them all.
    [entry] = entries
    params.file_pattern = entry.split(',')  # A source takes no other lists.
  else:
    params.file_pattern = [
      own if isinstance(old, str) else type(old)([own, *old[1:]])
      for old, own in zip(pattern, entries, strict=True)
    ]
