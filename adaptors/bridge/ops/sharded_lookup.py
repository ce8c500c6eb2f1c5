"""Lookup in a sharded embedding table, built from ops that XLA compiles.

TensorFlow partitions the ids by shard, with dynamic shapes. Here shards are
concatenated, and rows are gathered at once. The gradient is TensorFlow's: for
each shard, slices of the rows that were looked up. Learners compute norms of
such slices before equal rows are added up.

Shapes: V rows, R rows of a shard, D dims, "..." any.
"""

from collections.abc import Sequence
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors


def lookup(
  shards: Sequence[Any], ids: Any, partition_strategy: str = 'mod'
) -> Any:
  """Returns rows of a table, [..., D...].

  Args:
    shards: of the table, [R, D...] each; R may be larger by one in the first
      V % len(shards) of them.
    ids: [...], int, in [0, V).
    partition_strategy: 'div' for consecutive rows in each shard, 'mod' for
      interleaved rows.

  Raises:
    UserError: the strategy is unknown.
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
    table = tf.concat(shards, 0) if is_div else _interleaved(tf, shards)

    def gradient(upstream):
      flat = tf.reshape(ids, [-1])
      rows = tf.reshape(upstream, [-1, *shards[0].shape[1:]])
      locations = _consecutive if is_div else _modulo
      return [
        _slices(tf, shard, rows, *location)
        for shard, location in zip(shards, locations(flat, shards), strict=True)
      ]

    return tf.gather(table, ids), gradient

  return looked_up(*shards)


def _interleaved(tf, shards):
  """Returns the table of shards with interleaved rows."""
  longest = max(shard.shape[0] for shard in shards)
  padded = [
    tf.pad(x, [[0, longest - x.shape[0]]] + [[0, 0]] * (x.shape.rank - 1))
    for x in shards
  ]
  return tf.reshape(tf.stack(padded, 1), [-1, *shards[0].shape[1:]])


def _consecutive(ids, shards):
  """Yields for each shard a mask of its ids, and their rows in it."""
  start = 0
  for shard in shards:
    size = shard.shape[0]
    yield (ids >= start) & (ids < start + size), ids - start
    start += size


def _modulo(ids, shards):
  """Yields for each shard a mask of its ids, and their rows in it."""
  for i in range(len(shards)):
    yield ids % len(shards) == i, ids // len(shards)


def _slices(tf, shard, rows, is_in, indices):
  """Returns the gradient of a shard.

  Slices of other shards are 0, with index -1, which is skipped when slices are
  added up.
  """
  mask = tf.reshape(is_in, [-1] + [1] * (rows.shape.rank - 1))
  return tf.IndexedSlices(
    tf.where(mask, rows, tf.zeros_like(rows)),
    tf.where(is_in, indices, -tf.ones_like(indices)),
    tf.shape(shard, out_type=indices.dtype),
  )
