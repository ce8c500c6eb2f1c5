"""Record files: where they are damaged, and their records one by one.

The formats are those of Lingvo's readers: `text` (a line is a record),
`tfrecord` and `tfrecord_gzip`. A record of the latter two is a frame: 8 bytes
that say how many bytes of data it has, 4 of their checksum, the data, and 4 of
its checksum. TensorFlow's native reader checks them; it names the byte where a
record is wrong, and here the record is found that lies there.
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
_LARGEST = 1 << 31  # More bytes than this are no record, but a wrong length.
_GZIP = b'\x1f\x8b'


@dataclasses.dataclass(frozen=True)
class Damage:
  """A record that cannot be read.

  Attributes:
    path: its file.
    record: which record of the file it is, from 0.
    reason: what is wrong with it.
    ends_file: whether what follows it in the file cannot be read either.
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
  """What a file holds.

  Attributes:
    records: how many records can be read.
    damages: the others, as far as they can be told apart, in order.
  """

  records: int
  damages: tuple[Damage, ...] = ()

  def keeps(self, record: int) -> bool:
    """Returns whether a record can be read."""
    return record not in self._lost

  @functools.cached_property
  def end(self) -> int | None:
    """Where the readable part of the file ends; None for its end."""
    ends = [d.record for d in self.damages if d.ends_file]
    return ends[0] if ends else None

  @functools.cached_property
  def _lost(self) -> frozenset[int]:
    return frozenset(d.record for d in self.damages)


# What goes on between the pieces of a scan: what was found damaged in each.
Steps = Generator[Damage | None, None, Scan]

# The results of scans, by path, type, size and time of change. Several inputs
# of a process may read one file, which can be large. No entry goes stale: a
# file that was changed has another key.
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
  """Does what `scan` does piece by piece.

  Args:
    path: the file.
    file_type: 'tfrecord' or 'tfrecord_gzip'.

  Yields:
    After each piece the damaged record in it, None if there is none.

  Returns:
    What the file holds.
  """
  key = _key(path, file_type)
  if key not in _scans:
    _scans[key] = yield from _scan(path, file_type)
  return _scans[key]


def is_scanned(path: str, file_type: str) -> bool:
  """Returns whether a file was read to its end before, as it is now."""
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
  """Returns what is wrong where a file is plainly of another format, or ''."""
  start = _header(path, 0)
  is_gzip = start.startswith(_GZIP)
  if file_type == 'tfrecord_gzip' and start and not is_gzip:
    return 'is not compressed by gzip, as the pattern says'
  if file_type != 'tfrecord_gzip' and is_gzip:
    return f'is compressed by gzip, and not {file_type} as the pattern says'
  # Of letters, a length would be greater than any file.
  if file_type == 'text' and len(start) == _HEADER.size:
    if _frame_size(start) <= _size_and_time(path)[0]:
      return 'holds TFRecords, and not text as the pattern says'
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
  # TensorFlow takes a part of a header for the end.
  return (yield from _scan_slowly(path, count, position))


def _scan_slowly(path: str, index: int, position: int) -> Steps:
  """Reads record by record, and goes on after one that is wrong.

  Args:
    path: the file.
    index: of the record to begin with; those before it are good.
    position: the byte where that is.
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
          damages.append(_cut_or_wrong(path, index, position, size))
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


def _cut_or_wrong(path: str, record: int, position: int, size: int) -> Damage:
  """Returns the damage of a record whose length is not known."""
  head = _header(path, position)
  is_whole = len(head) == _HEADER.size
  beyond = not is_whole or position + _frame_size(head) > size
  if record == 0 and is_whole and beyond:
    reason = 'does not begin as a record of a TFRecord file does'
  elif beyond:
    reason = f'(at byte {position}) is cut off, or its length is wrong'
  else:
    reason = f'(at byte {position}) has a wrong length, or checksum of it'
  return Damage(path, record, reason, ends_file=True)


def _header(path: str, position: int) -> bytes:
  with open_binary(path) as f:
    f.seek(position)
    return f.read(_HEADER.size)


def _scan_gzip(path: str) -> Steps:
  """Checks gzip's own checksum, and those of the frames inside."""
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
  """Returns how many frames come before an error, and what that is, or ''."""
  frames = 0
  with open_records(path, 'tfrecord_gzip') as f:
    try:
      for _ in _frames(f):
        frames += 1
        if frames % _RECORDS_OF_A_PIECE == 0:
          yield
    except (CutOffError, EOFError):
      return frames, 'is cut off'
    except (OSError, zlib.error) as e:
      # What was decompressed so far may be wrong as well.
      return 0, f'and others cannot be decompressed: {e}'
  return frames, ''


def _frames_before(path: str, offset: int) -> int:
  """Returns how many frames end at a byte or before it."""
  count = position = 0
  with (
    contextlib.suppress(CutOffError, EOFError, OSError, zlib.error),
    open_records(path, 'tfrecord_gzip') as f,
  ):
    for frame in _frames(f):
      position += len(frame)
      if position > offset:
        break
      count += 1
  return count


def _native_pieces(path: str, compression: str) -> Iterator[tuple[int, int]]:
  """Reads a file by tf.data, which leaves Python's other threads alone.

  Args:
    path: the file.
    compression: 'GZIP' or ''.

  Yields:
    After each piece how many records there were so far, and how many bytes
    their frames have.
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
  """Returns how many records are held in memory, judged by the first."""
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
  """Returns the byte that TensorFlow says a record is wrong at, if it does."""
  found = re.search(r'record at (\d+)', str(error))
  return int(found[1]) if found else None


def _frame_size(header: bytes) -> int:
  return _HEADER.size + _HEADER.unpack(header)[0] + _FOOTER


class CutOffError(Exception):
  """A file ends within a frame."""


def _frames(f: BinaryIO) -> Iterator[bytes]:
  while header := f.read(_HEADER.size):
    if len(header) < _HEADER.size:
      raise CutOffError
    size = _frame_size(header) - _HEADER.size
    rest = f.read(size) if size <= _LARGEST else b''
    if len(rest) < size:
      raise CutOffError
    yield header + rest


def records(path: str, file_type: str, known: Scan | None) -> Iterator[bytes]:
  """Yields what a file holds for each record that can be read.

  That is a line with its end, or a frame.

  Args:
    path: the file.
    file_type: one of `FORMATS`.
    known: which records can be read; None for all.
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
  """Returns the record of what `records` yields: that which a reader gives."""
  if file_type == 'text':
    return piece.removesuffix(b'\n').removesuffix(b'\r')
  return piece[_HEADER.size : -_FOOTER]


def _lines(f: BinaryIO) -> Iterator[bytes]:
  for line in f:
    yield line if line.endswith(b'\n') else line + b'\n'


@contextlib.contextmanager
def open_binary(path: str) -> Iterator[BinaryIO]:
  """Opens a file, wherever it is, to read its bytes."""
  if '://' in path:
    gfile = lingvo_runtime.tensorflow().io.gfile
    with gfile.GFile(path, 'rb') as f:
      yield f
  else:
    with open(path, 'rb', buffering=_BUFFER) as f:
      yield f


@contextlib.contextmanager
def open_records(path: str, file_type: str) -> Iterator[BinaryIO]:
  """Opens a file to read what its records are made of, decompressed."""
  with open_binary(path) as f:
    if file_type != 'tfrecord_gzip':
      yield f
      return
    # Unbuffered: what comes before an error is not lost with it.
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
