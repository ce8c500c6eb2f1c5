"""ImageNet, read from TFRecord files of JPEG images.

The files are those of the usual conversion: `train-00000-of-01024` and
`validation-00000-of-00128` in one folder, whose records have the features
`image/encoded` and `image/class/label` (from 1 on).

Legend: B images in a batch, S pixels of height and of width, C classes.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from adaptors import lingvo_runtime, tf_data_input
from pax_compat import errors
from pax_compat.config import REQUIRED, Config
from pax_compat.nested_map import NestedMap

TRAIN_EXAMPLES = 1281167
EVAL_EXAMPLES = 50000

# The center of an image that evaluation sees, as a fraction of its height.
_CROP_FRACTION = 0.875
_FILES_AT_ONCE = 64
_SHUFFLE_BUFFER = 10000


class ImageNetInput(tf_data_input.TFDataInput):
  """Images with values in 0..255.

  Training crops an area of 8% to 100% of the image and flips half of the
  images, by `input_random_seed`; evaluation takes the center. A batch has
  `image` [B, S, S, 3], `label_probs` [B, C] and `weight` [B].

  Attributes:
    data_dir: folder of the files.
    split: 'train' or 'validation'.
    image_size: S.
    num_classes: C.
    label_id_offset: added to the labels of the files.
    dataset_fn: set by the input.
  """

  data_dir: str | None = REQUIRED
  split: str = REQUIRED
  image_size: int = 224
  num_classes: int = 1000
  label_id_offset: int = -1
  dataset_fn: Any = None

  def __post_init__(self):
    reader = _shuffled if self.is_training else _in_order
    files = record_files(self.data_dir, self.split)
    self.dataset_fn = Config(reader, files=files)
    self.map_fn = self._example
    super().__post_init__()

  def _example(self, numbered: dict) -> dict:
    """Maps a numbered record to an example."""
    tf = lingvo_runtime.tensorflow()
    features = tf.io.parse_single_example(
      numbered['record'],
      {
        'image/encoded': tf.io.FixedLenFeature([], tf.string),
        'image/class/label': tf.io.FixedLenFeature([], tf.int64),
      },
    )
    encoded = features['image/encoded']
    if self.is_training:
      seed = tf.stack([self.input_random_seed or 0, numbered['number']])
      image = random_crop(encoded, self.image_size, seed)
    else:
      image = center_crop(encoded, self.image_size)
    label = features['image/class/label'] + self.label_id_offset
    return {
      'image': tf.reshape(image, [self.image_size, self.image_size, 3]),
      'label_probs': tf.one_hot(label, self.num_classes),
      'weight': tf.ones([]),
    }


def record_files(folder: str | None, split: str) -> list[str]:
  """Returns the files of a split, sorted.

  Raises:
    UserError: there are none.
  """
  expected = f'expected {split}-*-of-* in the folder that it names'
  if folder is None:
    raise errors.UserError(
      f'the folder of ImageNet is not set; {expected}, for example by'
      ' --attr=IMAGENET_DATA_DIR=/data/imagenet'
    )
  files = sorted(map(str, pathlib.Path(folder).glob(f'{split}-*-of-*')))
  if not files:
    raise errors.UserError(f'ImageNet is not in {folder}; {expected}')
  return files


def _in_order(files: list[str]) -> Any:
  """Returns the records of the files with their numbers."""
  tf = lingvo_runtime.tensorflow()
  return _numbered(tf.data.TFRecordDataset(files))


def _shuffled(files: list[str], seed: int, host: int, hosts: int) -> Any:
  """Returns a host's records in random order, without end."""
  tf = lingvo_runtime.tensorflow()
  if len(files) < hosts:
    raise errors.UserError(
      f'{hosts} hosts cannot share {len(files)} files of ImageNet; expected at'
      ' least one for each'
    )
  own = tf.data.Dataset.from_tensor_slices(files).shard(hosts, host)

  def epoch(number):
    order = own.shuffle(len(files), seed=seed + number)
    records = order.interleave(
      tf.data.TFRecordDataset,
      cycle_length=_FILES_AT_ONCE,
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True,
    )
    return records.shuffle(_SHUFFLE_BUFFER, seed=seed + number)

  return _numbered(tf.data.Dataset.counter().flat_map(epoch))


def _numbered(records: Any) -> Any:
  return records.enumerate().map(
    lambda number, record: {'number': number, 'record': record}
  )


def center_crop(encoded: Any, size: int) -> Any:
  """Returns the center of a JPEG image, [size, size, 3]."""
  tf = lingvo_runtime.tensorflow()
  height, width, _ = tf.unstack(tf.image.extract_jpeg_shape(encoded))
  whole = round(size / _CROP_FRACTION)
  shorter = tf.cast(tf.minimum(height, width), tf.float32)
  side = tf.cast(size / whole * shorter, tf.int32)
  top, left = (height - side + 1) // 2, (width - side + 1) // 2
  return _cropped(encoded, tf.stack([top, left, side, side]), size)


def random_crop(encoded: Any, size: int, seed: Any) -> Any:
  """Returns a random part of a JPEG image, maybe flipped, [size, size, 3].

  Args:
    encoded: the image, a string tensor.
    size: height and width of the result.
    seed: [2], int64; the same seed gives the same crop.
  """
  tf = lingvo_runtime.tensorflow()
  shape = tf.image.extract_jpeg_shape(encoded)
  begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
    shape,
    bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
    seed=seed,
    min_object_covered=0.1,
    aspect_ratio_range=(3 / 4, 4 / 3),
    area_range=(0.08, 1.0),
    max_attempts=10,
    use_image_if_no_bounding_boxes=True,
  )
  # TensorFlow returns the whole image if it does not find one.
  whole = tf.reduce_all(extent[:2] == shape[:2])
  image = tf.cond(
    whole,
    lambda: center_crop(encoded, size),
    lambda: _cropped(encoded, tf.concat([begin[:2], extent[:2]], 0), size),
  )
  return tf.image.stateless_random_flip_left_right(image, seed=seed + 1)


def _cropped(encoded: Any, window: Any, size: int) -> Any:
  tf = lingvo_runtime.tensorflow()
  image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
  return tf.image.resize(image, [size, size], method='bicubic')


def specs(rows: int, size: int = 224, classes: int = 1000) -> NestedMap:
  """Returns the specs of a batch of B = `rows` images."""

  def spec(*shape):
    return jax.ShapeDtypeStruct((rows, *shape), jnp.float32)

  return NestedMap(
    eval_sample_weights=spec(),
    image=spec(size, size, 3),
    label_probs=spec(classes),
    weight=spec(),
  )
