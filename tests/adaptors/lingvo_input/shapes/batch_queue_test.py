"""Batches that wait for a step of their shape."""

import numpy as np
import pytest

from adaptors.lingvo_input.shapes import batch_queue
from pax_compat import errors
from pax_compat.nested_map import NestedMap


def _batch(length, value=1):
  return NestedMap(
    ids=np.full([2, length], value),
    paddings=np.zeros([2, length], np.float32),
    eval_sample_weights=np.ones(2, np.float32),
  )


def test_batches_of_a_shape_come_in_order():
  queue = batch_queue.BatchQueue()
  for index, length in enumerate([3, 5, 3, 3]):
    batch = _batch(length)
    queue.add(batch_queue.shape_of(batch), index, batch)
  short, long = (batch_queue.shape_of(_batch(n)) for n in (3, 5))
  assert queue.oldest() == short
  assert [w.index for w in queue.pop(short, 2)] == [0, 2]
  assert queue.oldest() == long and queue.counts() == {long: 1, short: 1}
  assert queue.indices() == [1, 3] and len(queue) == 2


def test_bytes_are_those_in_the_queue():
  queue = batch_queue.BatchQueue()
  batch = _batch(3)
  queue.add('a', 0, batch)
  queue.add('a', 1, None)  # Another host's.
  assert queue.num_bytes == sum(x.nbytes for x in batch.values())
  assert len(queue.pop('a', 5)) == 2
  assert not queue and queue.num_bytes == 0 and queue.counts() == {}
  assert queue.pop('a', 1) == []


def test_padding_rows_of_another_shape():
  like, shape = _batch(3), batch_queue.shape_of(_batch(5))
  rows = batch_queue.zero_weight_batch(like, shape)
  assert batch_queue.shape_of(rows) == shape
  assert not rows.eval_sample_weights.any() and not rows.ids.any()
  assert rows.paddings.all()


def test_many_shapes_are_refused():
  batch_queue.check_few_shapes('the input', range(64), _batch(3))
  with pytest.raises(errors.UserError, match='the input.*65 shapes'):
    batch_queue.check_few_shapes('the input', range(65), _batch(3))
