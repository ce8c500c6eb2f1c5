"""The order in which hosts share one epoch of an evaluation input.

All hosts read the same examples in the same order. B * H successive examples of
one shape make a global batch, and host h returns the h-th B of them. At the end
of the data, each incomplete batch gets padding rows: copies of its first
example with weight 0. So all hosts return equally many batches. With B = 2,
H = 2 and five examples of one shape:

    batch       1      2
    host 0    e0 e1   e4 --
    host 1    e2 e3   -- --        (--: a copy of e4 with weight 0)

Legend: B examples of a host in a batch, H hosts.
"""

import hashlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

from adaptors.lingvo_input import generator as generators
from adaptors.lingvo_input.shapes import bucket_shapes, given_lengths
from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap


class EvalOrder:
  """One host's batches of one epoch.

  At most B examples of each shape are in memory.
  """

  def __init__(
    self,
    *,
    label: str,
    generator: generators.Generator,
    buckets: bucket_shapes.Buckets,
    lengths: given_lengths.GivenLengths,
    watch: given_lengths.ShapeWatch,
    batch_size: int,
    num_hosts: int,
    host: int,
    num_samples: int | None,
    max_samples: int | None,
    on_end: Callable[[int], None],
  ):
    """Reads nothing yet.

    Args:
      label: the input's name in messages.
      generator: at its start.
      buckets: of the generator.
      lengths: that fields are padded to.
      watch: sees each batch.
      batch_size: B.
      num_hosts: H.
      host: the index of this host.
      num_samples: the number of examples of an epoch, of a generator that
        repeats its data; None for all up to the end.
      max_samples: the number of examples of an epoch at most; None for all.
      on_end: called at the end with the number of examples of all hosts.
    """
    self._label = label
    self._generator = generator
    self._buckets = buckets
    self._lengths = lengths
    self._watch = watch
    self._batch_size = batch_size
    self._num_hosts = num_hosts
    self._host = host
    self._num_samples = num_samples
    self._max_samples = max_samples
    self._on_end = on_end
    self._digest = hashlib.blake2b(digest_size=8)
    self._batches = self._epoch()

  def next(self) -> NestedMap:
    """Returns this host's next batch.

    Raises:
      StopIteration: the epoch is at its end.
      UserError: the leaves have no common batch axis, or there are too few
        examples.
    """
    batch = next(self._batches)
    self._watch(batch)
    return batch

  def digest(self) -> bytes | None:
    """Returns 8 bytes that depend on all data so far; None for one host."""
    return self._digest.digest() if self._num_hosts > 1 else None

  def _epoch(self) -> Iterator[NestedMap]:
    groups, count, guard = {}, 0, self._generator.end_guard()
    for batch in self._read_all():
      count += self._checked_rows(batch)
      guard(batch, count)
      if self._num_hosts > 1:
        for leaf in jax.tree.leaves(batch):
          self._digest.update(host_fields.canonical_bytes(leaf))
      fixed = self._generator.driver().fixed_lengths
      for examples in _by_length(batch, self._buckets, fixed):
        examples = self._lengths(examples)
        # Bounded: as many groups as there are shapes.
        key = tuple(x.shape[1:] for x in jax.tree.leaves(examples))
        if key not in groups:
          groups[key] = _Group(
            batch_size=self._batch_size,
            num_hosts=self._num_hosts,
            host=self._host,
          )
        yield from groups[key].add(examples)
    for key in sorted(groups):
      yield from groups[key].flush()
    self._on_end(count)

  def _read_all(self) -> Iterator[NestedMap]:
    """Yields the generator's batches of one epoch, the last one truncated."""
    left = self._num_samples
    must_have = left is not None
    if not must_have:
      left = self._max_samples
    while left is None or left > 0:
      try:
        batch = self._generator.next()
      except StopIteration:
        break
      if left is not None:
        rows = self._checked_rows(batch)
        batch = _rows(batch, 0, left) if rows > left else batch
        left -= rows
      yield batch
    if must_have and left > 0:
      raise errors.UserError(
        f'{self._label} ended after {self._num_samples - left} examples;'
        f' expected the {self._num_samples} of input.num_samples'
      )

  def _checked_rows(self, batch: NestedMap) -> int:
    rows = bucket_shapes.batch_rows(batch)
    if rows is None:
      shapes = {k: x.shape for k, x in batch.flatten_items()}
      raise errors.UserError(
        f'{self._label}: the leaves have no common batch axis to take'
        f' single examples from: {shapes}'
      )
    return rows


class _Group:
  """The examples of one shape, gathered into global batches of B * H.

  Only the B of this host are kept, and the first example of the global batch,
  of which padding rows are copies.
  """

  def __init__(self, *, batch_size: int, num_hosts: int, host: int):
    self._size = batch_size
    self._total = batch_size * num_hosts
    self._own = (batch_size * host, batch_size * (host + 1))
    self._seen = 0
    self._first = None
    self._kept = []

  def add(self, examples: NestedMap) -> Iterator[NestedMap]:
    """Takes examples [n, ...]; yields each batch [B, ...] that is complete."""
    start, n = 0, bucket_shapes.batch_rows(examples)
    while start < n:
      taken = min(n - start, self._total - self._seen)
      self._take(examples, start, taken)
      start += taken
      if self._seen == self._total:
        yield self._batch()

  def _take(self, examples: NestedMap, start: int, count: int):
    # Copied: a view would keep the generator's whole batch in memory.
    if self._first is None:
      self._first = _rows(examples, start, start + 1)
    low = max(self._own[0] - self._seen, 0)
    high = min(self._own[1] - self._seen, count)
    if low < high:
      self._kept.append(_rows(examples, start + low, start + high))
    self._seen += count

  def flush(self) -> Iterator[NestedMap]:
    """Yields the last batch, padded, if any example is left."""
    if self._seen:
      have = sum(bucket_shapes.batch_rows(p) for p in self._kept)
      if have < self._size:
        self._kept.append(
          example_rows.padding_rows(self._first, self._size - have)
        )
      yield self._batch()

  def _batch(self) -> NestedMap:
    batch = jax.tree.map(lambda *x: np.concatenate(x), *self._kept)
    self._seen, self._first, self._kept = 0, None, []
    return batch


def _rows(batch: NestedMap, start: int, stop: int) -> NestedMap:
  return jax.tree.map(lambda x: x[start:stop].copy(), batch)


def _by_length(
  batch: NestedMap,
  buckets: bucket_shapes.Buckets,
  fixed_lengths: NestedMap,
) -> Iterator[NestedMap]:
  """Yields the examples of each allowed length, with exactly this length."""
  lengths = buckets.row_lengths(batch)
  if lengths is None:
    yield buckets.extended(batch, fixed_lengths)
    return
  for length in np.unique(lengths):
    rows = np.flatnonzero(lengths == length)
    examples = jax.tree.map(lambda x, rows=rows: x[rows], batch)
    if length:  # 0: longer than every bucket, left as it is.
      examples = bucket_shapes.set_length(examples, int(length))
    yield examples
