"""Tests of the map from arrays of a state to tensors of a checkpoint."""

import doctest

from adaptors.checkpoints import mapping


def test_the_example():
  result = doctest.testmod(mapping)
  assert result.attempted and not result.failed
