"""A minimal PNG encoder, for images in TensorBoard."""

import struct
import zlib

import numpy as np

from pax_compat import errors

# Number of channels -> colour type of the PNG format.
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
_SIGNATURE = b'\x89PNG\r\n\x1a\n'


def encode(image: np.ndarray) -> bytes:
  """Encodes an image as a PNG file.

  Args:
    image: [H, W, C] with 1 to 4 channels: grey, grey and alpha, RGB or RGBA;
      uint8, or numbers in [0, 1], clipped.

  Raises:
    UserError: the array does not have this shape.
  """
  if image.ndim != 3 or image.shape[-1] not in _COLOUR_TYPES or not image.size:
    raise errors.UserError(
      f'an image has the shape {list(image.shape)}; expected [height, width,'
      ' channels] with 1 to 4 channels'
    )
  if image.dtype != np.uint8:
    clipped = np.clip(np.nan_to_num(image.astype(np.float32)), 0.0, 1.0)
    image = np.round(clipped * 255).astype(np.uint8)
  height, width, channels = image.shape
  header = struct.pack(
    '>IIBBBBB', width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0
  )
  # Every row starts with the number of its filter, 0 for none.
  rows = np.pad(image.reshape(height, -1), [(0, 0), (1, 0)])
  return _SIGNATURE + b''.join(
    (
      _chunk(b'IHDR', header),
      _chunk(b'IDAT', zlib.compress(rows.tobytes())),
      _chunk(b'IEND', b''),
    )
  )


def _chunk(kind: bytes, data: bytes) -> bytes:
  checked = kind + data
  return (
    struct.pack('>I', len(data))
    + checked
    + struct.pack('>I', zlib.crc32(checked))
  )
