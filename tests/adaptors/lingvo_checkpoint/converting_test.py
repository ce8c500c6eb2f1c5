"""Tests of the comparison of converted arrays."""

import numpy as np
import pytest

from adaptors.lingvo_checkpoint import converting


@pytest.mark.parametrize(
  ('lingvos', 'ours', 'equal'),
  [
    (np.int64(7), np.int32(7), True),
    (np.int64(2**32 + 7), np.int32(7), False),
    (np.float32([1, np.nan]), np.float32([1, np.nan]), True),
    (np.float64([0.5, np.nan]), np.float32([0.5, np.nan]), True),
    (np.float64([0.1]), np.float32([0.1]), False),
    (np.float32([0.0]), np.float32([-0.0]), False),
  ],
)
def test_equal_arrays(lingvos, ours, equal):
  """64-bit values are equal to the same ones in 32 bits."""
  assert converting.are_equal(np.asarray(lingvos), np.asarray(ours)) == equal
