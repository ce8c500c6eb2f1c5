"""PNG files, read by other software."""

import io

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.metrics import png

image_lib = pytest.importorskip('PIL.Image')

RNG = np.random.default_rng(0)


def _read(data: bytes) -> np.ndarray:
  image = np.asarray(image_lib.open(io.BytesIO(data)))
  return image[..., np.newaxis] if image.ndim == 2 else image


@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_bytes_come_back(channels):
  image = RNG.integers(0, 256, [5, 7, channels]).astype(np.uint8)
  np.testing.assert_array_equal(_read(png.encode(image)), image)


def test_numbers_from_0_to_1_are_shown():
  image = np.array([[[0.0], [0.5], [1.0]], [[-3.0], [2.0], [np.nan]]])
  want = np.array([[[0], [128], [255]], [[0], [255], [0]]])
  np.testing.assert_array_equal(_read(png.encode(image)), want)


@pytest.mark.parametrize('shape', [[4, 4], [4, 4, 5], [0, 4, 3], [1, 4, 4, 3]])
def test_what_is_not_an_image(shape):
  with pytest.raises(errors.UserError, match=r'the shape \[.*; expected \[hei'):
    png.encode(np.zeros(shape))
