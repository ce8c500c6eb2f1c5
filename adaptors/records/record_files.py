"""Record files: their records one by one, and which of them are damaged.

The formats are those of Lingvo's readers: `text` (a line is a record),
`tfrecord` and `tfrecord_gzip`. A record of the latter two is a frame:

    bytes   8        4                  N      4
            N        checksum of N      data   checksum of the data

TensorFlow's native reader checks them and names the byte of a wrong record; the
index of that record is found here.
"""

import contextlib
import dataclasses
import functools
import gzip
import os
import re
import struct
import zlib
from collections.abc import Generator, Iterator
from typing import BinaryIO

from adaptors import lingvo_runtime

FORMATS = ('text', 'tfrecord', 'tfrecord_gzip')

_HEADER = struct.Struct('<QI')
_FOOTER = 4
_BUFFER = 1 << 22
_LARGEST_PIECE = 1 << 24  # Bytes, unless a record is larger.
_RECORDS_OF_A_PIECE = 256
_LARGEST = 1 << 31  # More bytes than this are a wrong length, not a record.
_GZIP = b'\x1f\x8b'


@dataclasses.dataclass(frozen=True)
class Damage:
  """A record that cannot be read.

  Attributes:
    path: its file.
    record: its index in the file.
    reason: what is wrong with it.
    ends_file: whether the rest of the file cannot be read either.
  """

  path: str
  record: int
  reason: str
  ends_file: bool

  def __str__(self) -> str:
    rest = ', and nothing after it can be read' if self.ends_file else ''
    return f'record {self.record} of {self.path} {self.reason}{rest}'


@dataclasses.dataclass(frozen=True)
class Scan:
  """The result of reading a whole file.

  Attributes:
    records: number of readable records.
    damages: the others, as far as they can be separated, in order.
  """

  records: int
  damages: tuple[Damage, ...] = ()

  def keeps(self, record: int) -> bool:
    """Returns whether the record of an index can be read."""
    return record not in self._lost

  @functools.cached_property
  def end(self) -> int | None:
    """Index of the record at which the readable part ends; None for all."""
    ends = [d.record for d in self.damages if d.ends_file]
    return ends[0] if ends else None

  @functools.cached_property
  def _lost(self) -> frozenset[int]:
    return frozenset(d.record for d in self.damages)


# A scan in steps: yields the damaged record of each step, or None.
Steps = Generator[Damage | None, None, Scan]

# Scans by path, type, size and modification time. Several inputs of a process
# may read one file, which can be large. Entries do not expire: a changed file
# has another key.
_scans: dict[tuple, Scan] = {}


def scan(path: str, file_type: str) -> Scan:
  """Reads a file of frames to its end and checks every checksum.

  Args:
    path: the file.
    file_type: 'tfrecord' or 'tfrecord_gzip'.
  """
  steps = scanning(path, file_type)
  while True:
    try:
      next(steps)
    except StopIteration as e:
      return e.value


def scanning(path: str, file_type: str) -> Steps:
  """Does the same as `scan`, in steps.

  Args:
    path: the file.
    file_type: 'tfrecord' or 'tfrecord_gzip'.

  Yields:
    After each step the damaged record that it found, or None.
  """
  key = _key(path, file_type)
  if key not in _scans:
    _scans[key] = yield from _scan(path, file_type)
  return _scans[key]


def is_scanned(path: str, file_type: str) -> bool:
  """Returns whether a file, unchanged since, was scanned before."""
  return _key(path, file_type) in _scans


def _key(path: str, file_type: str) -> tuple:
  return (path, file_type, *_size_and_time(path))


def _size_and_time(path: str) -> tuple[int, int]:
  if '://' in path:
    stat = lingvo_runtime.tensorflow().io.gfile.stat(path)
    return stat.length, stat.mtime_nsec
  stat = os.stat(path)  # TensorFlow's time of a local file is in seconds.
  return stat.st_size, stat.st_mtime_ns


def _scan(path: str, file_type: str) -> Steps:
  wrong = wrong_format(path, file_type)
  if wrong:
    damage = Damage(path, 0, wrong, ends_file=True)
    yield damage
    return Scan(0, (damage,))
  if file_type == 'tfrecord_gzip':
    return (yield from _scan_gzip(path))
  return (yield from _scan_frames(path))


def wrong_format(path: str, file_type: str) -> str:
  """Returns what is wrong if a file clearly has another format, or ''."""
  start = _header(path, 0)
  is_gzip = start.startswith(_GZIP)
  if file_type == 'tfrecord_gzip' and start and not is_gzip:
    return 'is not compressed by gzip, in spite of its pattern'
  if file_type != 'tfrecord_gzip' and is_gzip:
    return f'is compressed by gzip, but its pattern has the type {file_type}'
  # A length made of letters would be greater than any file.
  if file_type == 'text' and len(start) == _HEADER.size:
    if _frame_size(start) <= _size_and_time(path)[0]:
      return 'contains TFRecords, but its pattern has the type text'
  return ''


def _scan_frames(path: str) -> Steps:
  tf = lingvo_runtime.tensorflow()
  count = position = 0
  try:
    for so_far in _native_pieces(path, ''):
      count, position = so_far
      yield
  except tf.errors.DataLossError:
    pass
  # TensorFlow takes a truncated header for the end.
  return (yield from _scan_slowly(path, count, position))


def _scan_slowly(path: str, index: int, position: int) -> Steps:
  """Reads record by record, and continues after a wrong one.

  Args:
    path: the file.
    index: of the first record to read; those before it are readable.
    position: its first byte.
  """
  tf = lingvo_runtime.tensorflow()
  io_module = lingvo_runtime.module('tensorflow.python.lib.io.tf_record')
  reader = io_module.tf_record_random_reader(path)
  size, damages = tf.io.gfile.stat(path).length, []
  try:
    while position < size:
      try:
        position = reader.read(position)[1]
      except (tf.errors.DataLossError, IndexError) as e:
        if f'corrupted record at {position + _HEADER.size}' not in str(e):
          damages.append(_truncated_or_wrong(path, index, position, size))
          yield damages[-1]
          break
        reason = f'(at byte {position}) does not match its checksum'
        damages.append(Damage(path, index, reason, ends_file=False))
        yield damages[-1]
        position += _frame_size(_header(path, position))
      index += 1
      if index % _RECORDS_OF_A_PIECE == 0:
        yield
  finally:
    reader.close()
  return Scan(index - sum(not d.ends_file for d in damages), tuple(damages))


def _truncated_or_wrong(
  path: str, record: int, position: int, size: int
) -> Damage:
  """Returns the damage of a record of unknown length."""
  head = _header(path, position)
  is_whole = len(head) == _HEADER.size
  beyond = not is_whole or position + _frame_size(head) > size
  if record == 0 and is_whole and beyond:
    reason = 'does not begin as a record of a TFRecord file does'
  elif beyond:
    reason = f'(at byte {position}) is truncated, or its length is wrong'
  else:
    reason = f'(at byte {position}) has a wrong length, or checksum of it'
  return Damage(path, record, reason, ends_file=True)


def _header(path: str, position: int) -> bytes:
  with open_binary(path) as f:
    f.seek(position)
    return f.read(_HEADER.size)


def _scan_gzip(path: str) -> Steps:
  """Checks gzip's own checksum, and those of the frames."""
  frames, reason = yield from _count_decompressed(path)
  try:
    for _ in _native_pieces(path, 'GZIP'):
      yield
  except lingvo_runtime.tensorflow().errors.DataLossError as e:
    offset = _offset(e)
    frames = 0 if offset is None else min(frames, _frames_before(path, offset))
    reason = reason or 'does not match its checksum'
  if not reason:
    return Scan(frames)
  damage = Damage(path, frames, reason, ends_file=True)
  yield damage
  return Scan(frames, (damage,))


def _count_decompressed(path: str) -> Generator[None, None, tuple[int, str]]:
  """Returns the number of frames before an error, and its reason, or ''."""
  frames = 0
  with open_records(path, 'tfrecord_gzip') as f:
    try:
      for _ in _frames(f):
        frames += 1
        if frames % _RECORDS_OF_A_PIECE == 0:
          yield
    except (TruncatedError, EOFError):
      return frames, 'is truncated'
    except (OSError, zlib.error) as e:
      # The data decompressed so far may be wrong as well.
      return 0, f'and others cannot be decompressed: {e}'
  return frames, ''


def _frames_before(path: str, offset: int) -> int:
  """Returns the number of frames that end at a byte or before it."""
  count = position = 0
  with (
    contextlib.suppress(TruncatedError, EOFError, OSError, zlib.error),
    open_records(path, 'tfrecord_gzip') as f,
  ):
    for frame in _frames(f):
      position += len(frame)
      if position > offset:
        break
      count += 1
  return count


def _native_pieces(path: str, compression: str) -> Iterator[tuple[int, int]]:
  """Reads a file by tf.data, which does not block Python's other threads.

  Args:
    path: the file.
    compression: 'GZIP' or ''.

  Yields:
    The number of records so far, and of bytes of their frames.
  """
  tf = lingvo_runtime.tensorflow()
  records = tf.data.TFRecordDataset(path, compression, _BUFFER)
  pieces = records.batch(_records_of_a_piece(path, compression))
  options = tf.data.Options()
  options.autotune.enabled = False  # It would read ahead in another thread.
  count = position = 0
  for piece in pieces.with_options(options):
    count += len(piece)
    position += int(tf.strings.length(piece).numpy().sum(dtype='int64'))
    position += len(piece) * (_HEADER.size + _FOOTER)
    yield count, position


def _records_of_a_piece(path: str, compression: str) -> int:
  """Returns the number of records to keep in memory, judged by the first."""
  file_type = 'tfrecord_gzip' if compression else 'tfrecord'
  with (
    contextlib.suppress(EOFError, OSError, zlib.error),
    open_records(path, file_type) as f,
  ):
    header = f.read(_HEADER.size)
    if len(header) == _HEADER.size:
      fitting = _LARGEST_PIECE // _frame_size(header)
      return min(max(fitting, 1), _RECORDS_OF_A_PIECE)
  return 1


def _offset(error: Exception) -> int | None:
  """Returns the byte of the wrong record in TensorFlow's message, or None."""
  found = re.search(r'record at (\d+)', str(error))
  return int(found[1]) if found else None


def _frame_size(header: bytes) -> int:
  return _HEADER.size + _HEADER.unpack(header)[0] + _FOOTER


class TruncatedError(Exception):
  """A file ends within a frame."""


def _frames(f: BinaryIO) -> Iterator[bytes]:
  while header := f.read(_HEADER.size):
    if len(header) < _HEADER.size:
      raise TruncatedError
    size = _frame_size(header) - _HEADER.size
    rest = f.read(size) if size <= _LARGEST else b''
    if len(rest) < size:
      raise TruncatedError
    yield header + rest


def records(path: str, file_type: str, known: Scan | None) -> Iterator[bytes]:
  """Yields each readable record of a file: a line with its end, or a frame.

  Args:
    path: the file.
    file_type: one of `FORMATS`.
    known: the scan of the file; None if all records are readable.
  """
  with open_records(path, file_type) as f:
    pieces = _lines(f) if file_type == 'text' else _frames(f)
    end = known.end if known else None
    index = 0
    while end is None or index < end:
      piece = next(pieces, None)
      if piece is None:
        return
      if known is None or known.keeps(index):
        yield piece
      index += 1


def data_of(piece: bytes, file_type: str) -> bytes:
  """Returns the data of what `records` yields, as a reader returns it."""
  if file_type == 'text':
    return piece.removesuffix(b'\n').removesuffix(b'\r')
  return piece[_HEADER.size : -_FOOTER]


def _lines(f: BinaryIO) -> Iterator[bytes]:
  for line in f:
    yield line if line.endswith(b'\n') else line + b'\n'


@contextlib.contextmanager
def open_binary(path: str) -> Iterator[BinaryIO]:
  """Opens a file, local or remote, to read its bytes."""
  if '://' in path:
    gfile = lingvo_runtime.tensorflow().io.gfile
    with gfile.GFile(path, 'rb') as f:
      yield f
  else:
    with open(path, 'rb', buffering=_BUFFER) as f:
      yield f


@contextlib.contextmanager
def open_records(path: str, file_type: str) -> Iterator[BinaryIO]:
  """Opens a file to read its decompressed bytes."""
  with open_binary(path) as f:
    if file_type != 'tfrecord_gzip':
      yield f
      return
    # Unbuffered: a buffer would lose the bytes before an error.
    with gzip.GzipFile(fileobj=f, mode='rb') as raw:
      yield raw


@contextlib.contextmanager
def writing(path: str | os.PathLike, file_type: str) -> Iterator[BinaryIO]:
  """Opens a new local file to write what `records` yields."""
  if file_type == 'tfrecord_gzip':
    with gzip.open(path, 'wb', compresslevel=1) as f:
      yield f
  else:
    with open(path, 'wb', buffering=_BUFFER) as f:
      yield f
