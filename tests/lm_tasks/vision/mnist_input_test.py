"""MNIST from its files."""

import gzip

import jax
import numpy as np
import pytest

from lm_tasks.vision import mnist_input
from pax_compat import errors

IMAGES = np.arange(6 * 28 * 28).reshape(6, 28, 28).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9], np.uint8)


def write(folder, prefix: str, opened=open):
  """Writes a small MNIST."""
  suffix = '.gz' if opened is gzip.open else ''
  for name, array in (
    ('images-idx3-ubyte', IMAGES),
    ('labels-idx1-ubyte', LABELS),
  ):
    head = np.array([0x800 + array.ndim, *array.shape], '>i4').tobytes()
    with opened(folder / f'{prefix}-{name}{suffix}', 'wb') as file:
      file.write(head + array.tobytes())


@pytest.mark.parametrize('opened', [open, gzip.open])
@pytest.mark.parametrize('train', [True, False])
def test_files(tmp_path, opened, train):
  write(tmp_path, 'train' if train else 't10k', opened)
  images, labels = mnist_input.read(str(tmp_path), train)
  np.testing.assert_array_equal(images, IMAGES)
  np.testing.assert_array_equal(labels, LABELS)


def test_a_batch(tmp_path):
  write(tmp_path, 't10k')
  data = mnist_input.MnistDatasetInput.config(
    name='test', batch_size=4, reset_for_eval=True, tfds_data_dir=str(tmp_path)
  ).Instantiate()
  batch = data.get_next()
  assert batch.inputs.shape == (4, 28, 28, 1)
  np.testing.assert_allclose(batch.inputs[..., 0] * 255, IMAGES[:4], rtol=1e-6)
  np.testing.assert_array_equal(batch.labels, LABELS[:4])
  batch = data.get_next_padded()
  np.testing.assert_array_equal(batch.eval_sample_weights, [1, 1, 0, 0])


@pytest.mark.parametrize('is_training', [True, False])
def test_shapes_without_the_files(tmp_path, is_training):
  write(tmp_path, 'train' if is_training else 't10k')
  config = mnist_input.MnistDatasetInput.config(
    name='digits',
    batch_size=4,
    is_training=is_training,
    reset_for_eval=not is_training,
  )
  specs = config.cls.specs_of_config(config)
  data = config.set(tfds_data_dir=str(tmp_path)).Instantiate()
  found = data.specs_of(data.get_next_padded())
  assert jax.tree.map(lambda x: (tuple(x.shape), x.dtype), specs) == (
    jax.tree.map(lambda x: (tuple(x.shape), x.dtype), found)
  )


def test_what_is_not_mnist(tmp_path):
  with pytest.raises(errors.UserError, match='folder of MNIST is not set'):
    mnist_input.read(None, True)
  with pytest.raises(errors.UserError, match='MNIST is not in'):
    mnist_input.read(str(tmp_path), True)
  (tmp_path / 'train-images-idx3-ubyte').write_bytes(b'something else')
  with pytest.raises(errors.UserError, match='not a file of MNIST'):
    mnist_input.read(str(tmp_path), True)
