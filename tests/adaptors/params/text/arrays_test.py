"""Tests of `adaptors.params.text.arrays`."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.params.text import arrays

pytest.importorskip('lingvo')


def _torus(outer, inner):
  gshard_utils = lingvo_runtime.module('lingvo.core.gshard_utils')
  return gshard_utils.GetNonPod2dMesh([outer, inner], [outer, inner // 2, 2])


@pytest.mark.parametrize(
  'array',
  [
    np.arange(8).reshape(1, 8),
    np.arange(12, dtype=np.int32),
    np.array([[True, False], [False, True]]),
    np.array([[5, -1], [3, 2]], np.int16),
  ],
  ids=str,
)
def test_whole_arrays(array):
  read = arrays.read(repr(array))
  assert read.dtype == array.dtype
  np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
  'make',
  [
    lambda: np.arange(2048).reshape(64, 32),
    lambda: np.arange(2048).reshape(32, 64).T,
    lambda: np.arange(2048),
    lambda: np.arange(4096).reshape(16, 16, 16),
    lambda: _torus(32, 64),
    lambda: _torus(64, 32),
    lambda: _torus(64, 32).T,
    lambda: _torus(32, 32).T,
  ],
)
def test_abbreviated_orders_of_devices(make):
  array = make()
  assert '...' in repr(array)
  np.testing.assert_array_equal(arrays.read(repr(array)), array)
  plain = np.array2string(array, separator=', ')
  np.testing.assert_array_equal(arrays.read(plain, array.shape), array)


@pytest.mark.parametrize(
  'text, message',
  [
    ('array([0.1, 0.2])', 'only arrays of integers'),
    ('array([0, ..., 1999])', 'its shape is not in the text'),
    ('array([0, 7, 2, ..., 1997, 1998, 1999], shape=(2000,))', 'no known'),
    ('array([__import__("os")])', 'not the text of an array'),
    ('array([nan, 1.])', 'not the text of an array'),
    ('array([[0, 1], [2]])', 'not the text of an array'),
  ],
)
def test_unreadable_arrays(text, message):
  with pytest.raises(arrays.UnreadableError, match=message):
    arrays.read(text)
