"""Tests of the rows that fill a batch up."""

import numpy as np
import pytest

from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap


def _batch():
  return NestedMap(
    ids=np.array([[1, 2], [3, 4]]),
    weights=np.array([[1.0, 0.5], [1.0, 1.0]]),
    paddings=np.array([[0.0, 0.0], [0.0, 1.0]]),
    src=NestedMap(target_paddings=np.zeros([2, 1]), weight=np.ones([2])),
    text=np.array([b'one', b'two'], object),
  )


def test_rows_are_those_of_what_has_rows():
  assert example_rows.num_rows(_batch()) == 2
  assert example_rows.num_rows({'a': np.float32(1), 'b': np.zeros([3, 1])}) == 3


def test_examples_count_as_one_unless_they_say_otherwise():
  weighed = example_rows.weighed(_batch(), 2)
  np.testing.assert_array_equal(weighed.eval_sample_weights, [1, 1])
  assert weighed.eval_sample_weights.dtype == np.float32
  said = NestedMap(eval_sample_weights=np.array([2.0, 0.5]))
  assert example_rows.weighed(said, 2) is said


@pytest.mark.parametrize('real', [0, 1, 2])
def test_rows_that_are_missing_are_copies_that_do_not_count(real):
  batch = example_rows.weighed(_batch(), 2)
  filled = example_rows.filled(batch, real=real, rows=3)
  ids = [[1, 2], [3, 4]][:real] + [[1, 2]] * (3 - real)
  np.testing.assert_array_equal(filled.ids, ids)
  for name, value in (
    ('weights', 0),
    ('paddings', 1),
    ('eval_sample_weights', 0),
  ):
    np.testing.assert_array_equal(filled[name][:real], batch[name][:real])
    assert (filled[name][real:] == value).all()
    assert filled[name].dtype == batch[name].dtype
  np.testing.assert_array_equal(filled.src.target_paddings[real:], 1)
  np.testing.assert_array_equal(filled.src.weight[real:], 0)
  assert filled.text[real] == b'one'


def test_a_batch_that_is_full_stays():
  filled = example_rows.filled(_batch(), real=2, rows=2)
  np.testing.assert_array_equal(filled.ids, _batch().ids)
  np.testing.assert_array_equal(filled.weights, _batch().weights)
