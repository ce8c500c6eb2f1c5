"""MNIST, from its four files or from a folder of TensorFlow Datasets.

Legend: B images in a batch.
"""

import gzip
import pathlib
from typing import Any

import jax
import numpy as np

from adaptors import lingvo_runtime
from pax_compat import errors
from pax_compat.inputs import indexed_input
from pax_compat.nested_map import NestedMap

# Pixels of an image, height and width.
_SIZE = (28, 28)
_PREFIXES = {True: 'train', False: 't10k'}


class MnistDatasetInput(indexed_input.IndexedInput):
  """Handwritten digits of 28x28 pixels, the training or the test images.

  A batch has `inputs` [B, 28, 28, 1] in 0..1 and `labels` [B] int.

  Attributes:
    tfds_data_dir: the folder; the flag `--tfds_data_dir` sets it. It contains
      `train-images-idx3-ubyte` and the three others, with or without `.gz`, or
      a folder `mnist` that TensorFlow Datasets prepared.

  Raises:
    UserError: MNIST is not in the folder.
  """

  tfds_data_dir: str | None = None

  def __post_init__(self):
    super().__post_init__()
    self._images, self._labels = read(self.tfds_data_dir, self.is_training)

  @classmethod
  def specs_of_config(cls, config: Any) -> NestedMap:
    rows = config.batch_size + config.batch_padding_size
    return NestedMap(
      inputs=jax.ShapeDtypeStruct([rows, *_SIZE, 1], np.float32),
      labels=jax.ShapeDtypeStruct([rows], np.int32),
      eval_sample_weights=jax.ShapeDtypeStruct([rows], np.float32),
    )

  @property
  def num_examples(self) -> int:
    """The number of images."""
    return len(self._labels)

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns the images of some indices, and their digits."""
    images = self._images[indices][..., np.newaxis]
    return NestedMap(
      inputs=images.astype(np.float32) / 255,
      labels=self._labels[indices].astype(np.int32),
    )


def read(folder: str | None, train: bool) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images [n, 28, 28] and their digits [n], uint8.

  Args:
    folder: see `MnistDatasetInput`.
    train: whether to read the training images.

  Raises:
    UserError: MNIST is not in the folder.
  """
  if folder is None:
    raise errors.UserError(
      'the folder of MNIST is not set; expected one with'
      ' train-images-idx3-ubyte.gz and the three other files, or one of'
      ' TensorFlow Datasets: --tfds_data_dir=/data/mnist'
    )
  root = pathlib.Path(folder)
  if (root / 'mnist').is_dir():
    return _of_tfds(folder, train)
  prefix = _PREFIXES[train]
  images = _of_file(root, f'{prefix}-images-idx3-ubyte', rank=3)
  labels = _of_file(root, f'{prefix}-labels-idx1-ubyte', rank=1)
  if len(images) != len(labels):
    raise errors.UserError(
      f'{folder} has {len(images)} images and {len(labels)} labels of'
      f' {prefix}; expected as many'
    )
  return images, labels


def _of_tfds(folder: str, train: bool) -> tuple[np.ndarray, np.ndarray]:
  tfds = lingvo_runtime.tensorflow_datasets()
  split = 'train' if train else 'test'
  data = tfds.load(
    'mnist', split=split, data_dir=folder, batch_size=-1, download=False
  )
  arrays = tfds.as_numpy(data)
  return arrays['image'][..., 0], arrays['label'].astype(np.uint8)


def _of_file(folder: pathlib.Path, name: str, rank: int) -> np.ndarray:
  """Returns the array of a file: magic number, sizes, bytes."""
  for path, opened in (
    (folder / name, open),
    (folder / f'{name}.gz', gzip.open),
  ):
    if path.exists():
      with opened(path, 'rb') as file:
        content = file.read()
      break
  else:
    raise errors.UserError(
      f'MNIST is not in {folder}; expected {name} or {name}.gz in it, or a'
      ' folder mnist of TensorFlow Datasets'
    )
  start = 4 * (1 + rank)
  head = np.frombuffer(content[: min(start, len(content) // 4 * 4)], '>i4')
  sizes = head[1:].tolist()
  valid = len(head) == 1 + rank and head[0] == 0x800 + rank
  if not valid or np.prod(sizes) != len(content) - start:
    raise errors.UserError(
      f'{path} is not a file of MNIST: expected an IDX file of bytes of'
      f' {rank} dimensions'
    )
  return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
