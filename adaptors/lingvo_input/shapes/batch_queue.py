"""Padded batches that wait for a step of their shape.

At each step all hosts return batches of one shape. `AgreedShapes` and
`ReplayOrder` read ahead, and what has to wait is queued here.
"""

import collections
import json
from collections.abc import Collection
from typing import Any, NamedTuple

import jax

from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap

# The shapes of a batch's leaves, as JSON: processes send it to each other.
Shape = str

# Waiting batches stay in memory.
_MOST_SHAPES = 64


class Waiting(NamedTuple):
  """A batch in the queue.

  Attributes:
    index: of the batch in the generator's order.
    batch: None if only another host needs it.
  """

  index: int
  batch: NestedMap | None


class BatchQueue:
  """Batches by shape; first in, first out within a shape.

  >>> import numpy as np
  >>> queue = BatchQueue()
  >>> for index, length in enumerate([3, 5, 3]):
  ...   batch = NestedMap(ids=np.zeros([2, length], np.int32))
  ...   queue.add(shape_of(batch), index, batch)
  >>> queue.counts()
  {'[[2, 3]]': 2, '[[2, 5]]': 1}
  >>> [waiting.index for waiting in queue.pop('[[2, 3]]', 4)]
  [0, 2]
  >>> queue.oldest(), queue.num_bytes
  ('[[2, 5]]', 40)

  Attributes:
    num_bytes: of the batches in the queue.
  """

  def __init__(self):
    """Makes an empty queue."""
    self.num_bytes = 0
    self._waiting: dict[Shape, collections.deque[Waiting]] = {}

  def __len__(self) -> int:
    """Returns the number of entries."""
    return sum(map(len, self._waiting.values()))

  def add(self, shape: Shape, index: int, batch: NestedMap | None):
    """Appends an entry of a shape; `index` must rise."""
    self.num_bytes += _num_bytes(batch)
    entries = self._waiting.setdefault(shape, collections.deque())
    entries.append(Waiting(index, batch))

  def pop(self, shape: Shape, most: int) -> list[Waiting]:
    """Removes and returns the first entries of a shape, at most `most`."""
    entries = self._waiting.get(shape, ())
    found = [entries.popleft() for _ in range(min(most, len(entries)))]
    if not entries:
      self._waiting.pop(shape, None)
    self.num_bytes -= sum(_num_bytes(waiting.batch) for waiting in found)
    return found

  def counts(self) -> dict[Shape, int]:
    """Returns the number of entries of each shape that has any."""
    return {shape: len(entries) for shape, entries in self._waiting.items()}

  def indices(self) -> list[int]:
    """Returns the indices of all entries, ascending."""
    return sorted(w.index for q in self._waiting.values() for w in q)

  def oldest(self) -> Shape:
    """Returns the shape of the entry with the lowest index."""
    return min(self._waiting, key=lambda shape: self._waiting[shape][0].index)


def shape_of(batch: NestedMap) -> Shape:
  """Returns the shapes of a batch's leaves."""
  return json.dumps([x.shape for x in jax.tree.leaves(batch)])


def zero_weight_batch(like: NestedMap, shape: Shape) -> NestedMap:
  """Returns a batch of padding rows: paddings of 1, zeros elsewhere.

  Args:
    like: a batch with the same leaves, perhaps of other shapes.
    shape: of the result.
  """
  leaves, tree = jax.tree_util.tree_flatten_with_path(like)
  blanks = [
    host_fields.blank(x, sizes, example_rows.padding_value(path))
    for (path, x), sizes in zip(leaves, json.loads(shape), strict=True)
  ]
  return jax.tree.unflatten(tree, blanks)


def check_few_shapes(name: str, shapes: Collection[Any], batch: NestedMap):
  """Raises if batches, which wait for others of their shape, have too many.

  Args:
    name: of the input, in messages.
    shapes: the shapes so far.
    batch: the last batch.

  Raises:
    UserError: there are too many shapes.
  """
  if len(shapes) > _MOST_SHAPES:
    raise errors.UserError(
      f'{name}: hosts feed batches of equal shapes, and the generator returned'
      f' {len(shapes)} shapes, such as'
      f' { {path: x.shape for path, x in batch.flatten_items()} }; expected a'
      ' few. Make it pad its batches to the bounds of its buckets'
    )


def _num_bytes(batch: NestedMap | None) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(batch))
