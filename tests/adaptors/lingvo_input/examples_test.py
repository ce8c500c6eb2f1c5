"""The examples in the docstrings."""

import doctest

import pytest

from adaptors.lingvo_input.drivers import batch_leaves
from adaptors.lingvo_input.shapes import (
  agreed_shapes,
  batch_queue,
  bucket_shapes,
)


@pytest.mark.parametrize(
  'module', [agreed_shapes, batch_leaves, batch_queue, bucket_shapes]
)
def test_examples(module):
  done = doctest.testmod(module)
  assert done.attempted > 0 and done.failed == 0
