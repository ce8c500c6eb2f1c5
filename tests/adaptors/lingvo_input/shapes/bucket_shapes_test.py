"""Tests of the shapes of batches."""

import numpy as np

from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat.nested_map import NestedMap


def test_texts_are_extended_by_empty_ones():
  batch = NestedMap(
    paddings=np.zeros([2, 2], np.float32),
    words=np.array([[b'a', b'b'], [b'c', b'']], object),
    name=np.array([b'x', b'y'], object),
  )
  longer = bucket_shapes.set_length(batch, 3)
  assert longer.paddings.tolist() == [[0, 0, 1]] * 2
  assert longer.words.tolist() == [[b'a', b'b', b''], [b'c', b'', b'']]
  assert longer.name is batch.name
  more = bucket_shapes.pad_rows(batch, 3)
  assert more.paddings.tolist() == [[0, 0], [0, 0], [1, 1]]
  assert more.words[2].tolist() == [b'', b''] and more.name[2] == b''
