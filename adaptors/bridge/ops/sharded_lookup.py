"""Rows of a table that is cut in shards, from ops that XLA compiles.

TensorFlow deals the ids to the shards, as many to each as there happen to be.
Here the table is joined and gathered from at once. The gradient is what
TensorFlow's would be: for each shard, slices of the rows that were looked up.
Learners measure such slices before equal rows are added up.

Shapes: V rows, R rows of a shard, D dims, "..." any.
"""

from collections.abc import Sequence
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors


def lookup(
  shards: Sequence[Any], ids: Any, partition_strategy: str = 'mod'
) -> Any:
  """Returns rows of a table.

  Args:
    shards: of the table, [R, D...] each; in V % len(shards) of them, the first
      ones, R may be greater by one.
    ids: [...], int, in [0, V).
    partition_strategy: 'div' where each shard has rows that follow each other,
      'mod' where rows go round the shards.

  Returns:
    [..., D...].

  Raises:
    UserError: there is no such strategy.
  """
  tf = lingvo_runtime.module('tensorflow')
  if partition_strategy not in ('div', 'mod'):
    raise errors.UserError(
      f'an embedding lookup with partition_strategy {partition_strategy!r};'
      " expected 'div' or 'mod'"
    )
  ids = tf.convert_to_tensor(ids)
  shards = [tf.convert_to_tensor(shard) for shard in shards]
  is_div = partition_strategy == 'div'

  @tf.custom_gradient
  def looked_up(*shards):
    table = tf.concat(shards, 0) if is_div else _dealt(tf, shards)

    def gradient(upstream):
      flat = tf.reshape(ids, [-1])
      rows = tf.reshape(upstream, [-1, *shards[0].shape[1:]])
      places = _in_runs if is_div else _in_turns
      return [
        _slices(tf, shard, rows, *place)
        for shard, place in zip(shards, places(flat, shards), strict=True)
      ]

    return tf.gather(table, ids), gradient

  return looked_up(*shards)


def _dealt(tf, shards):
  """Returns the table whose rows go round the shards."""
  longest = max(shard.shape[0] for shard in shards)
  padded = [
    tf.pad(x, [[0, longest - x.shape[0]]] + [[0, 0]] * (x.shape.rank - 1))
    for x in shards
  ]
  return tf.reshape(tf.stack(padded, 1), [-1, *shards[0].shape[1:]])


def _in_runs(ids, shards):
  """Yields for each shard which ids are in it, and their rows in it."""
  start = 0
  for shard in shards:
    size = shard.shape[0]
    yield (ids >= start) & (ids < start + size), ids - start
    start += size


def _in_turns(ids, shards):
  """Yields for each shard which ids are in it, and their rows in it."""
  for i in range(len(shards)):
    yield ids % len(shards) == i, ids // len(shards)


def _slices(tf, shard, rows, is_in, places):
  """Returns the gradient of a shard.

  Slices of other shards have no place, -1, which is left out when they are
  added up, and no size.
  """
  mask = tf.reshape(is_in, [-1] + [1] * (rows.shape.rank - 1))
  return tf.IndexedSlices(
    tf.where(mask, rows, tf.zeros_like(rows)),
    tf.where(is_in, places, -tf.ones_like(places)),
    tf.shape(shard, out_type=places.dtype),
  )
