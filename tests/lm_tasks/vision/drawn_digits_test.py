"""Drawn digits."""

import numpy as np
import pytest

from lm_tasks.vision import drawn_digits
from pax_compat import errors


def _input(**fields):
  given = dict(num_images=40, batch_size=40, reset_for_eval=True) | fields
  return drawn_digits.DrawnDigitsInput.config(**given).Instantiate()


def test_a_batch():
  batch = _input().get_next()
  assert batch.image.shape == (40, 20, 20, 1)
  assert batch.image.dtype == batch.label_probs.dtype == np.float32
  np.testing.assert_allclose(batch.image.mean((1, 2, 3)), 0, atol=1e-5)
  np.testing.assert_allclose(batch.image.std((1, 2, 3)), 1, atol=1e-5)
  np.testing.assert_array_equal(batch.label_probs.sum(1), 1)
  assert set(batch.label_probs.argmax(1)) == set(range(10))


def test_images_follow_from_index_and_seed():
  one, same, other = _input(), _input(batch_size=20), _input(drawing_seed=1)
  whole = one.get_next().image
  np.testing.assert_array_equal(same.get_next().image, whole[:20])
  np.testing.assert_array_equal(same.get_next().image, whole[20:])
  different = np.abs(other.get_next().image - whole).max((1, 2, 3))
  assert (different > 0.5).all()


def test_digits_of_one_class_are_more_alike_than_others():
  batch = _input(num_images=400, batch_size=400).get_next()
  labels = batch.label_probs.argmax(1)
  means = np.stack([batch.image[labels == k].mean(0) for k in range(10)])
  scores = np.einsum('bhwc,khwc->bk', batch.image, means)
  scores = scores / np.linalg.norm(means.reshape(10, -1), axis=1)
  assert 0.5 < (scores.argmax(1) == labels).mean() < 0.99


def test_a_size_too_small_to_read():
  with pytest.raises(errors.UserError, match='image_size of .* is 8'):
    _input(image_size=8)
