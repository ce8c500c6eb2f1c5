"""Prefixes, aligned, truncated and padded."""

import doctest

import numpy as np

from pax_compat.decoding import prefixes

IDS = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def test_examples():
  found = doctest.testmod(prefixes)
  assert found.attempted and not found.failed


def test_only_the_prefix_is_kept():
  made = prefixes.create(IDS, np.array([3, 1, 2]))
  np.testing.assert_array_equal(made.ids, [[1, 2, 3], [4, 0, 0], [7, 8, 0]])
  np.testing.assert_array_equal(made.lengths, [3, 1, 2])
  np.testing.assert_array_equal(made.offsets, 0)


def test_there_is_one_token_at_least_and_no_more_than_there_are():
  made = prefixes.create(IDS, np.array([0, 1, 9]))
  np.testing.assert_array_equal(made.lengths, [1, 1, 3])
  np.testing.assert_array_equal(made.ids, [[1, 0, 0], [4, 0, 0], [7, 8, 9]])


def test_right_aligned():
  made = prefixes.right_aligned(prefixes.create(IDS, np.array([3, 1, 2])))
  np.testing.assert_array_equal(made.ids, [[1, 2, 3], [0, 0, 4], [0, 7, 8]])
  np.testing.assert_array_equal(made.offsets, [0, 2, 1])
  np.testing.assert_array_equal(made.lengths, [3, 1, 2])
  longer = prefixes.pad(made, 5)
  np.testing.assert_array_equal(
    longer.ids, [[1, 2, 3, 0, 0], [0, 0, 4, 0, 0], [0, 7, 8, 0, 0]]
  )
  back = prefixes.left_aligned(longer.ids, made.offsets, -1)
  np.testing.assert_array_equal(
    back, [[1, 2, 3, 0, 0], [4, 0, 0, -1, -1], [7, 8, 0, 0, -1]]
  )


def test_cut():
  made = prefixes.truncate(prefixes.create(IDS, np.array([3, 1, 2])), 2)
  np.testing.assert_array_equal(made.ids, [[1, 2], [4, 0], [7, 8]])
  np.testing.assert_array_equal(made.lengths, [2, 1, 2])
