"""ImageNet from TFRecord files."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from lm_tasks.vision import imagenet_input
from pax_compat import errors
from pax_compat.config import Config

# Of Pax's `preprocess_image` for evaluation, 32 pixels: sum, and two pixels.
_IN_PAX = (
  (
    (97, 131),
    346874.12,
    [29.170208, 105.609085, 49.191357],
    [117.89534, 128.83472, 101.59206],
  ),
  (
    (60, 60),
    212653.66,
    [18.516075, 35.05556, 20.026218],
    [72.74857, 48.770416, 52.208393],
  ),
)


def _jpeg(height: int, width: int) -> bytes:
  y, x = np.mgrid[:height, :width]
  image = np.stack([y * 2 % 256, x * 3 % 256, (x + y) % 256], -1)
  tf = lingvo_runtime.tensorflow()
  return tf.io.encode_jpeg(image.astype(np.uint8), quality=95).numpy()


@pytest.fixture(name='folder')
def _folder(tmp_path):
  """Three images in each of two files."""
  tf = lingvo_runtime.tensorflow()
  for split in ('train', 'validation'):
    for i in range(2):
      path = tmp_path / f'{split}-{i:05}-of-00002'
      with tf.io.TFRecordWriter(str(path)) as writer:
        for label in range(3 * i + 1, 3 * i + 4):
          features = {
            'image/encoded': tf.train.Feature(
              bytes_list=tf.train.BytesList(value=[_jpeg(97, 131)])
            ),
            'image/class/label': tf.train.Feature(
              int64_list=tf.train.Int64List(value=[label])
            ),
          }
          example = tf.train.Example(
            features=tf.train.Features(feature=features)
          )
          writer.write(example.SerializeToString())
  return str(tmp_path)


def _config(folder: str, split: str, **fields) -> Config:
  return imagenet_input.ImageNetInput.config(
    name=split,
    data_dir=folder,
    split=split,
    image_size=32,
    num_classes=6,
    batch_size=4,
    **fields,
  )


@pytest.mark.parametrize('shape, total, first, second', _IN_PAX)
def test_the_center_is_that_of_pax(shape, total, first, second):
  image = imagenet_input.center_crop(_jpeg(*shape), 32).numpy()
  np.testing.assert_allclose(image.sum(), total, rtol=1e-5)
  np.testing.assert_allclose(image[3, 4], first, rtol=1e-5)
  np.testing.assert_allclose(image[20, 7], second, rtol=1e-5)


def test_an_evaluation_reads_each_image_once(folder):
  data = _config(folder, 'validation', reset_for_eval=True).Instantiate()
  specs = imagenet_input.specs(4, 32, 6)
  labels = []
  for _ in range(2):
    batch = data.get_next_padded()
    assert {k: (x.shape, x.dtype) for k, x in batch.items()} == {
      k: (x.shape, x.dtype) for k, x in specs.items()
    }
    real = batch.eval_sample_weights > 0
    labels += batch.label_probs[real].argmax(1).tolist()
  assert sorted(labels) == list(range(6))
  assert data.peek_padded() is None
  np.testing.assert_allclose(batch.image[0].sum(), _IN_PAX[0][1], rtol=1e-5)


def test_training_crops_by_the_seed_without_end(folder):
  fields = dict(is_training=True, input_random_seed=3)
  batches = [
    [data.get_next() for _ in range(3)]
    for data in (
      _config(folder, 'train', **fields).Instantiate(),
      _config(folder, 'train', **fields).Instantiate(),
    )
  ]
  for one, other in zip(*batches, strict=True):
    np.testing.assert_array_equal(one.image, other.image)
  images = np.concatenate([batch.image for batch in batches[0]])
  assert len(np.unique(images.reshape(12, -1), axis=0)) == 12
  labels = np.concatenate([batch.label_probs for batch in batches[0]])
  np.testing.assert_array_equal(labels.sum(0), 2)  # Two epochs.


def test_hosts_share_the_files(folder):
  labels = []
  for host in range(2):
    data = _config(
      folder,
      'train',
      is_training=True,
      num_infeed_hosts=2,
      infeed_host_index=host,
    ).Instantiate()
    labels.append(set(data.get_next().label_probs.argmax(1).tolist()))
  assert labels == [{0, 1, 2}, {3, 4, 5}]


def test_a_folder_without_images(folder, tmp_path):
  with pytest.raises(errors.UserError, match='folder of ImageNet is not set'):
    _config(None, 'train').Instantiate()
  with pytest.raises(errors.UserError, match=r'expected test-\*-of-\*'):
    _config(folder, 'test').Instantiate()
