"""Images of digits that are drawn, so that nothing is downloaded.

Legend: B images in a batch, S pixels of height and of width.
"""

import numpy as np

from pax_compat.config import REQUIRED
from pax_compat.inputs import indexed_input
from pax_compat.nested_map import NestedMap

NUM_CLASSES = 10

# Rows of 5 pixels, from top to bottom.
_GLYPHS = (
  '01110 10001 10011 10101 11001 10001 01110',
  '00100 01100 00100 00100 00100 00100 01110',
  '01110 10001 00001 00010 00100 01000 11111',
  '11111 00010 00100 00010 00001 10001 01110',
  '00010 00110 01010 10010 11111 00010 00010',
  '11111 10000 11110 00001 00001 10001 01110',
  '00110 01000 10000 11110 10001 10001 01110',
  '11111 00001 00010 00100 01000 01000 01000',
  '01110 10001 10001 01110 10001 10001 01110',
  '01110 10001 10001 01111 00001 00010 01100',
)


def _glyphs() -> np.ndarray:
  """Returns the digits, [10, 11, 9], with two pixels of background around."""
  rows = [[[float(x) for x in row] for row in text.split()] for text in _GLYPHS]
  return np.pad(np.array(rows, np.float32), [(0, 0), (2, 2), (2, 2)])


class DrawnDigitsInput(indexed_input.IndexedInput):
  """Digits of random size, place, slant, brightness and noise.

  A batch has `image` [B, S, S, 1], of mean 0 and deviation 1, and `label_probs`
  [B, 10]. An image follows from its index and the `drawing_seed` alone: inputs
  with different seeds have no image in common.

  Attributes:
    num_images: number of images in an epoch.
    image_size: S.
    drawing_seed: seed of all images.
  """

  num_images: int = REQUIRED
  image_size: int = 20
  drawing_seed: int = 0

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.image_size >= 12,
      f'image_size of {self.name} is {self.image_size}; expected at least 12',
    )

  @property
  def num_examples(self) -> int:
    """The number of images."""
    return self.num_images

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns the images of some indices, and their classes."""
    drawn = [
      draw(int(i), seed=self.drawing_seed, size=self.image_size)
      for i in indices
    ]
    images, labels = zip(*drawn, strict=True)
    return NestedMap(
      image=np.stack(images)[..., np.newaxis],
      label_probs=np.eye(NUM_CLASSES, dtype=np.float32)[list(labels)],
    )


def draw(index: int, *, seed: int, size: int) -> tuple[np.ndarray, int]:
  """Returns an image [size, size], float32, and its digit.

  >>> image, digit = draw(3, seed=0, size=20)
  >>> image.shape, digit == draw(3, seed=0, size=20)[1]
  ((20, 20), True)
  """
  rng = np.random.default_rng((seed, index))
  digit = int(rng.integers(NUM_CLASSES))
  glyph = _GLYPH_PIXELS[digit]
  height = rng.uniform(0.55, 0.9) * size
  width = height * rng.uniform(0.55, 0.8)
  center = (size - 1) / 2 + rng.uniform(-0.1, 0.1, 2) * size
  slant = rng.uniform(-0.25, 0.25)
  y, x = np.mgrid[:size, :size] - center[:, np.newaxis, np.newaxis]
  # Places in the glyph, whose ink is 7 pixels high and 5 wide.
  rows = y / height * 7 + (glyph.shape[0] - 1) / 2
  columns = (x + slant * y) / width * 5 + (glyph.shape[1] - 1) / 2
  ink = _interpolated(glyph, rows, columns) * rng.uniform(0.7, 1.0)
  image = ink + rng.uniform(0, 0.2) * rng.normal(size=ink.shape)
  image = (image - image.mean()) / max(image.std(), 1e-6)
  return image.astype(np.float32), digit


def _interpolated(
  pixels: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
  """Returns values between pixels, by linear interpolation."""
  limits = [size - 1.001 for size in pixels.shape]
  rows, columns = rows.clip(0, limits[0]), columns.clip(0, limits[1])
  top, left = rows.astype(int), columns.astype(int)
  down, right = rows - top, columns - left
  upper = pixels[top, left] * (1 - right) + pixels[top, left + 1] * right
  top = top + 1
  lower = pixels[top, left] * (1 - right) + pixels[top, left + 1] * right
  return upper * (1 - down) + lower * down


_GLYPH_PIXELS = _glyphs()
