"""Finds damaged records of an input's files, before or after a reader fails.

Lingvo's native readers do not report damaged files. After a record that does
not match its checksum they repeat that record forever, or wait forever; a
truncated header counts as the end of the file; a compressed file is read as
text. So files are checked before they are read, up to a number of bytes, and
the others while they are read.

Readers of tf.data report a wrong record, but not its file and index: `explain`
does.
"""

import dataclasses
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.records import record_files
from pax_compat import errors

_SHOWN = 3
_ADVICE = (
  'replace the file, or leave such records out with --skip_bad_records'
  ' (skip_bad_records=True of the input)'
)


@dataclasses.dataclass(frozen=True)
class Checked:
  """The result of a check of files.

  Attributes:
    damaged: the scan of each file with damaged records, by path.
    unchecked: the type and the path of each file that was not checked.
  """

  damaged: dict[str, record_files.Scan]
  unchecked: tuple[tuple[str, str], ...]


def check_files(
  name: str,
  files: Iterable[tuple[str, Sequence[str]]],
  *,
  skip: bool,
  bytes_to_check: int | None,
) -> Checked:
  """Checks every record of files, up to a number of bytes.

  Args:
    name: of the input, in messages.
    files: pairs of a file type, such as 'tfrecord', and the paths of one
      reader. Files of other types than `record_files.FORMATS` are not checked.
    skip: whether unreadable records are left out. Then all bytes are checked,
      as the files are rewritten.
    bytes_to_check: number of bytes that are read; None for all.

  Raises:
    UserError: a record cannot be read and `skip` is False; or no record of a
      reader can be read.
  """
  gfile = lingvo_runtime.tensorflow().io.gfile
  left = None if skip else bytes_to_check
  damaged, unchecked, unread = {}, [], 0
  for file_type, paths in files:
    scans = {}
    for path in paths if file_type in record_files.FORMATS else ():
      size = gfile.stat(path).length
      is_free = file_type == 'text' or record_files.is_scanned(path, file_type)
      if is_free or left is None or size <= left:
        scans[path] = _scan(path, file_type)
        left = left if left is None or is_free else left - size
      else:
        unchecked.append((file_type, path))
        unread += size
    wrong = {path: scan for path, scan in scans.items() if scan.damages}
    if wrong:
      _refuse(name, wrong, skip, is_all=_nothing_left(scans, paths))
    damaged.update(wrong)
  if unchecked:
    logging.warning(
      '%s: %d files of %d bytes, the first of which is %s, are checked for'
      ' damaged records only while they are read, as bytes_to_check is %d.'
      ' Until a damaged record is found, the reader may repeat it, or wait',
      name,
      len(unchecked),
      unread,
      unchecked[0][1],
      bytes_to_check,
    )
  return Checked(damaged, tuple(unchecked))


def error(name: str, problem: str) -> errors.UserError:
  """Returns an error about damaged records, with advice.

  Args:
    name: of the input, in messages.
    problem: the records, and what is wrong with them.
  """
  return errors.UserError(f'{name}: {problem}; {_ADVICE}')


def _scan(path: str, file_type: str) -> record_files.Scan:
  if file_type != 'text':
    return record_files.scan(path, file_type)
  wrong = record_files.wrong_format(path, file_type)
  if not wrong:
    return record_files.Scan(0)
  damage = record_files.Damage(path, 0, wrong, ends_file=True)
  return record_files.Scan(0, (damage,))


def _nothing_left(scans, paths) -> bool:
  readable = [s for s in scans.values() if s.records or not s.damages]
  return len(scans) == len(paths) and not readable


def _refuse(name, wrong: dict[str, record_files.Scan], skip: bool, is_all):
  """Raises a UserError about damaged files, or logs what is left out."""
  damages = [d for scan in wrong.values() for d in scan.damages]
  problem = '; '.join(map(str, damages[:_SHOWN]))
  if len(damages) > _SHOWN:
    problem += f'; and {len(damages) - _SHOWN} more of {len(wrong)} files'
  if is_all:
    raise errors.UserError(f'{name}: no record can be read: {problem}')
  if not skip:
    raise error(name, problem)
  for path, scan in wrong.items():
    logging.warning(
      '%s: skip_bad_records leaves out %d records of %s, and keeps %d: %s',
      name,
      len(scan.damages),
      path,
      scan.records,
      '; '.join(map(str, scan.damages)),
    )
  ends = sum(d.ends_file for d in damages)
  logging.warning(
    '%s: skip_bad_records leaves out %d records of %d files%s',
    name,
    len(damages),
    len(wrong),
    f', and what follows in {ends} files, where no record can be found'
    if ends
    else '',
  )


def explain(
  error: BaseException, files: Iterable[str]
) -> errors.UserError | None:
  """Returns an error that names the file and the record, or None.

  For errors of `tf.data`: a damaged TFRecord file, a record that is not a
  tf.Example or lacks a feature, a missing file. Files are read to find the
  record, so call it after the failure.

  Args:
    error: what was raised; its causes are searched as well.
    files: paths of the TFRecord files, compressed or not, in order.
  """
  gfile = lingvo_runtime.tensorflow().io.gfile
  kind, text = tensorflow_error(error)
  if kind == 'NotFoundError':
    found = re.search(r'([^\s;{}]*/[^\s;{}]*); No such file', text)
    return found and errors.UserError(f'the file {found[1]} does not exist')
  if not is_about_a_record(error):
    return None
  why = _why_no_example(text)
  for path in files:
    if not gfile.exists(path) or gfile.isdir(path):
      return errors.UserError(f'{path} is not a file that can be read')
    problem = _damage_of(path, why)
    if problem:
      return errors.UserError(problem)
  return None


def is_about_a_record(error: BaseException) -> bool:
  """Returns whether an error is about an unreadable record."""
  kind, text = tensorflow_error(error)
  if kind == 'DataLossError':
    return True
  return kind == 'InvalidArgumentError' and _why_no_example(text) is not None


def tensorflow_error(error: BaseException | None) -> tuple[str, str]:
  """Returns the type and the message of TensorFlow's error among the causes."""
  tf = lingvo_runtime.tensorflow()
  while error is not None:
    if isinstance(error, tf.errors.OpError):
      return type(error).__name__, str(error)
    if isinstance(error, UnicodeDecodeError):
      # Raised in place of an error that quotes a record of binary data.
      return 'InvalidArgumentError', error.object.decode('utf-8', 'replace')
    error = error.__cause__ or error.__context__
  return '', ''


def _damage_of(path: str, why: Callable[[bytes], str] | None) -> str:
  """Returns what is wrong with a file, or ''."""
  with record_files.open_binary(path) as f:
    is_gzip = f.read(2) == b'\x1f\x8b'
  file_type = 'tfrecord_gzip' if is_gzip else 'tfrecord'
  found = record_files.scan(path, file_type)
  if found.damages:
    return f'{found.damages[0]}'
  if why is None:
    return ''
  for index, piece in enumerate(record_files.records(path, file_type, found)):
    reason = why(record_files.data_of(piece, file_type))
    if reason:
      return f'record {index} of {path} {reason}'
  return ''


def _why_no_example(text: str) -> Callable[[bytes], str] | None:
  """Returns a function of a record: why it caused an error, or ''."""
  lacked = re.search(r'(?:Feature|Key): ([^\s(]+?)[.]?\s', text)
  if not lacked and 'Could not parse example' not in text:
    return None
  expected = re.search(r'expected type: (\w+)', text)

  def why(data):
    features = _features(data)
    if features is None:
      return _NO_EXAMPLE
    if not lacked:
      return ''
    kind = _kind(features, lacked[1])
    if kind is None:
      return f'has no feature {lacked[1]!r}; it has {sorted(features)}'
    if expected and kind != _KINDS.get(expected[1], kind):
      return f'has a {kind} as feature {lacked[1]!r}, not {expected[1]}'
    return ''

  return why


# The names of tensor types in a tf.Example.
_KINDS = {'int64': 'int64_list', 'float': 'float_list', 'string': 'bytes_list'}
_NO_EXAMPLE = 'is not a tf.Example'


def _features(data: bytes) -> Any:
  """Returns the features of a tf.Example by name; None if it is not one."""
  tf = lingvo_runtime.tensorflow()
  message = importlib.import_module('google.protobuf.message')
  try:
    return tf.train.Example.FromString(data).features.feature
  except message.DecodeError:
    return None


def _kind(features: Any, name: str) -> str | None:
  return features[name].WhichOneof('kind') if name in features else None
