"""Tests of truncated batches, and of their padding masks."""

import numpy as np

from adaptors.lingvo_parity import batches
from adaptors.params import shrinking
from pax_compat.nested_map import NestedMap

_PADDINGS = np.array([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], np.float32)


def _batch() -> NestedMap:
  ids = np.arange(100, 110, dtype=np.int32).reshape(2, 5)
  return NestedMap(
    ids=ids,
    labels=ids + 1,
    paddings=_PADDINGS,
    word_count=np.array([2, 1], np.int32),
  )


def test_truncate():
  sizes = shrinking.Sizes(batch_size=1, sequence_length=3)
  found = batches.truncate(_batch(), sizes, vocab_size=101)
  np.testing.assert_array_equal(found.ids, [[100, 0, 1]])
  np.testing.assert_array_equal(found.labels, [[0, 1, 2]])
  np.testing.assert_array_equal(found.paddings, [[0, 0, 0]])
  np.testing.assert_array_equal(found.word_count, [2])


def test_trimmed_to_the_longest_row():
  found = batches.trimmed(_batch())
  assert {k: x.shape for k, x in found.items()} == {
    'ids': (2, 3),
    'labels': (2, 3),
    'paddings': (2, 3),
    'word_count': (2,),
  }
  packed = batches.nested({'tgt.ids': np.zeros([2, 5])})
  assert batches.trimmed(packed).tgt.ids.shape == (2, 5)


def test_mask():
  np.testing.assert_array_equal(batches.mask(_batch()), 1 - _PADDINGS)
  segments = np.array([[1, 1, 2], [1, 0, 0]], np.int32)
  packed = batches.nested({'tgt.ids': segments, 'tgt.segment_ids': segments})
  np.testing.assert_array_equal(batches.mask(packed), [[1, 1, 1], [1, 0, 0]])
  assert batches.mask(NestedMap(x=segments)) is None
