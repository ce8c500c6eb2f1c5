"""Tests of finding damaged records of large files, piece by piece."""

import gzip

import pytest

from adaptors.records import record_files
from tests.adaptors.lingvo_input import damaged_files

COUNT = 700
SIZE = 16 + 8


@pytest.fixture(name='path')
def _path(tmp_path):
  """Returns a file of several pieces."""
  records = [b'%08d' % i for i in range(COUNT)]
  damaged_files.write(tmp_path / 'a', records)
  return tmp_path / 'a'


def _with_wrong_bytes(path, *places):
  content = bytearray(path.read_bytes())
  for place in places:
    content[place] ^= 64
  path.write_bytes(content)


def _numbers(path, file_type, found) -> list[int]:
  return [
    int(record_files.data_of(piece, file_type))
    for piece in record_files.records(str(path), file_type, found)
  ]


def test_records_of_later_pieces(path):
  assert record_files.scan(str(path), 'tfrecord') == record_files.Scan(COUNT)
  # The data of two records, and the length of a third.
  _with_wrong_bytes(path, 300 * SIZE + 15, 511 * SIZE + 13, 600 * SIZE + 1)
  steps = record_files.scanning(str(path), 'tfrecord')
  yielded = [damage.record for damage in steps if damage is not None]
  assert yielded == [300, 511, 600]
  found = record_files.scan(str(path), 'tfrecord')
  assert [d.record for d in found.damages] == yielded
  assert found.records == 598 and found.end == 600
  kept = [i for i in range(600) if i not in yielded]
  assert _numbers(path, 'tfrecord', found) == kept


def test_a_file_is_read_to_its_end_once(path):
  name = str(path)
  assert not record_files.is_scanned(name, 'tfrecord')
  assert len(list(record_files.scanning(name, 'tfrecord'))) > 1
  assert record_files.is_scanned(name, 'tfrecord')
  assert list(record_files.scanning(name, 'tfrecord')) == []
  _with_wrong_bytes(path, 600 * SIZE + 15)  # It is another file now.
  assert record_files.scan(name, 'tfrecord').damages[0].record == 600
  path.write_bytes(path.read_bytes()[: -SIZE - 5])  # Within a header.
  assert [d.record for d in record_files.scan(name, 'tfrecord').damages] == [
    600,
    698,
  ]


def test_compressed_records_of_later_pieces(path, tmp_path):
  _with_wrong_bytes(path, 511 * SIZE + 15)
  packed = tmp_path / 'a.gz'
  packed.write_bytes(gzip.compress(path.read_bytes()))
  found = record_files.scan(str(packed), 'tfrecord_gzip')
  assert [d.record for d in found.damages] == [511]
  assert _numbers(packed, 'tfrecord_gzip', found) == list(range(511))
