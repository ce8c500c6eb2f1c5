"""Tests of example weights and padding rows."""

import jax
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


def test_scalars_have_no_rows():
  assert example_rows.num_rows(_batch()) == 2
  assert example_rows.num_rows({'a': np.float32(1), 'b': np.zeros([3, 1])}) == 3


def test_example_weights_are_one_by_default():
  weighted = example_rows.with_example_weights(_batch(), 2)
  np.testing.assert_array_equal(weighted.eval_sample_weights, [1, 1])
  assert weighted.eval_sample_weights.dtype == np.float32
  given = NestedMap(eval_sample_weights=np.array([2.0, 0.5]))
  assert example_rows.with_example_weights(given, 2) is given


@pytest.mark.parametrize('real', [0, 1, 2])
def test_padding_rows_are_copies_with_weight_zero(real):
  batch = example_rows.with_example_weights(_batch(), 2)
  padded = example_rows.pad_batch(batch, real=real, rows=3)
  ids = [[1, 2], [3, 4]][:real] + [[1, 2]] * (3 - real)
  np.testing.assert_array_equal(padded.ids, ids)
  for name, value in (
    ('weights', 0),
    ('paddings', 1),
    ('eval_sample_weights', 0),
  ):
    np.testing.assert_array_equal(padded[name][:real], batch[name][:real])
    assert (padded[name][real:] == value).all()
    assert padded[name].dtype == batch[name].dtype
  np.testing.assert_array_equal(padded.src.target_paddings[real:], 1)
  np.testing.assert_array_equal(padded.src.weight[real:], 0)
  assert padded.text[real] == b'one'


@pytest.mark.parametrize(('real', 'left'), [(2, 2), (1, 1), (0, 3)])
def test_padding_rows_at_the_end_are_left_out(real, left):
  batch = example_rows.with_example_weights(_batch(), 2)
  padded = example_rows.pad_batch(batch, real=real, rows=3)
  found = example_rows.without_padding_rows(
    NestedMap(task=padded, n=np.ones([]))
  )
  assert {len(x) for x in jax.tree.leaves(found.task)} == {left}
  np.testing.assert_array_equal(found.task.ids, padded.ids[:left])
  assert found.n == 1
  del padded['eval_sample_weights']
  assert example_rows.without_padding_rows(padded) is padded


def test_rows_of_weight_zero_between_others_stay():
  batch = NestedMap(x=np.arange(4), eval_sample_weights=np.array([1, 0, 1, 0]))
  found = example_rows.without_padding_rows(batch)
  np.testing.assert_array_equal(found.x, [0, 1, 2])


def test_a_full_batch_is_not_padded():
  padded = example_rows.pad_batch(_batch(), real=2, rows=2)
  np.testing.assert_array_equal(padded.ids, _batch().ids)
  np.testing.assert_array_equal(padded.weights, _batch().weights)
