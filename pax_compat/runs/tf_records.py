"""The format of TFRecord files, and of event files, without TensorFlow.

Of each record: its length (uint64, little-endian), the masked CRC-32C of these
8 bytes (uint32), the bytes of the record, and their masked CRC-32C.
"""

import struct

import google_crc32c

_MASK = 0xA282EAD8


def framed(record: bytes) -> bytes:
  """Returns a record as a file contains it."""
  length = struct.pack('<Q', len(record))
  return b''.join((length, _crc(length), record, _crc(record)))


def _crc(data: bytes) -> bytes:
  """Returns the masked CRC-32C."""
  crc = google_crc32c.value(data)
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  return struct.pack('<I', (rotated + _MASK) & 0xFFFFFFFF)
