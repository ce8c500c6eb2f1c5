"""From a stream of examples to the batches of one host.

All hosts go through the examples in one order, of which B * H successive ones
make a global batch; host h has the h-th B of these.

Shapes: B examples of a host in a batch, H hosts, n examples of a chunk.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap

# Where an example comes from; the names are Pax's. As all hosts read one order,
# the index is that of the whole data, which counts as one shard.
INDEX = '_seqio_provenance/index_within_shard'
SHARD = '_seqio_provenance/shard_index'
SHARDS = '_seqio_provenance/num_shards'
PROVENANCE = (INDEX, SHARD, SHARDS)


class Place(NamedTuple):
  """A place in the order.

  Attributes:
    epoch: how many datasets were gone through before.
    row: how many examples of this one.
    count: how many examples in all.
  """

  epoch: int = 0
  row: int = 0
  count: int = 0


class Chunk(NamedTuple):
  """Successive examples.

  Attributes:
    epoch: which dataset they belong to.
    row: which of its examples the first one is.
    examples: leaves [n, ...].
  """

  epoch: int
  row: int
  examples: NestedMap


class Share(NamedTuple):
  """What one host has of a global batch.

  Attributes:
    examples: leaves [up to B, ...]; None where it has none.
    first: the first example of the global batch, leaves [1, ...].
    start: how many examples went before the global batch.
    size: how many examples the global batch has, of B * H.
    next: where the next global batch begins.
  """

  examples: NestedMap | None
  first: NestedMap
  start: int
  size: int
  next: Place


class Digest:
  """Says which examples were read, and in which order, in a few bytes."""

  def __init__(self):
    self._hash = hashlib.blake2b(digest_size=8)

  def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yields the chunks, and takes note of them."""
    for chunk in chunks:
      for leaf in jax.tree.leaves(chunk.examples):
        self._hash.update(host_fields.canonical_bytes(leaf))
      yield chunk

  @property
  def value(self) -> bytes:
    """8 bytes."""
    return self._hash.digest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharing:
  """How global batches are shared out, and what one host gets.

  Attributes:
    batch_size: B.
    num_hosts: H.
    host: h.
  """

  batch_size: int
  num_hosts: int
  host: int

  @property
  def global_size(self) -> int:
    """Examples of a full global batch."""
    return self.batch_size * self.num_hosts

  def own_of(self, count: int) -> int:
    """Returns how many of `count` examples are the host's."""
    batches, rest = divmod(count, self.global_size)
    own = min(max(rest - self.batch_size * self.host, 0), self.batch_size)
    return batches * self.batch_size + own

  def shares(self, chunks: Iterable[Chunk], count: int) -> Iterator[Share]:
    """Yields what the host has of each global batch.

    Only the last one may come short.

    Args:
      chunks: the examples.
      count: how many went before them.
    """
    pieces, first, size, place = [], None, 0, Place()
    for chunk in chunks:
      start, n = 0, example_rows.num_rows(chunk.examples)
      while start < n:
        if first is None:
          first = _rows(chunk.examples, start, start + 1)
        taken = min(n - start, self.global_size - size)
        low = start + max(self.batch_size * self.host - size, 0)
        high = start + min(self.batch_size * (self.host + 1) - size, taken)
        if low < high:
          pieces.append(_rows(chunk.examples, low, high))
        start, size = start + taken, size + taken
        place = Place(chunk.epoch, chunk.row + start, count + size)
        if size == self.global_size:
          yield Share(_joined(pieces), first, count, size, place)
          pieces, first, count, size = [], None, count + size, 0
    if size:
      yield Share(_joined(pieces), first, count, size, place)

  def batch(self, share: Share, *, blank_fillers: bool) -> NestedMap:
    """Returns a full batch, leaves [B, ...], with weights and provenance.

    What is missing are copies of the global batch's first example, which weigh
    nothing.

    Args:
      share: what the host has of the global batch.
      blank_fillers: whether all positions of the copies are said to be
        padding, too.
    """
    real = (
      example_rows.num_rows(share.examples) if share.examples is not None else 0
    )
    parts = [] if share.examples is None else [self.real(share)]
    if real < self.batch_size:
      parts.append(
        _fillers(share.first, self.batch_size - real, is_blank=blank_fillers)
      )
    return _joined(parts)

  def real(self, share: Share) -> NestedMap:
    """Returns the host's examples with weights and provenance."""
    rows = example_rows.num_rows(share.examples)
    index = share.start + self.batch_size * self.host + np.arange(rows)
    return example_rows.with_example_weights(
      NestedMap(
        {
          **share.examples,
          INDEX: index.astype(np.int64),
          SHARD: np.zeros(rows, np.int32),
          SHARDS: np.ones(rows, np.int32),
        }
      ),
      rows,
    )


def _fillers(example: NestedMap, count: int, *, is_blank: bool) -> NestedMap:
  """Returns `count` copies of an example [1, ...] that weigh nothing."""
  if is_blank:
    copies = example_rows.padding_rows(example, count)
  else:
    copies = jax.tree.map(lambda x: np.repeat(x, count, axis=0), example)
  none = np.full(count, -1, np.int32)
  return NestedMap(
    {
      **copies,
      example_rows.WEIGHTS: np.zeros(count, np.float32),
      INDEX: none.astype(np.int64),
      SHARD: none,
      SHARDS: none,
    }
  )


def _rows(examples: NestedMap, start: int, stop: int) -> NestedMap:
  if (start, stop) == (0, example_rows.num_rows(examples)):
    return examples
  # Copied: a view would keep the whole chunk alive.
  return jax.tree.map(lambda x: x[start:stop].copy(), examples)


def _joined(pieces: list[NestedMap]) -> NestedMap | None:
  if len(pieces) < 2:
    return pieces[0] if pieces else None
  return jax.tree.map(lambda *x: np.concatenate(x), *pieces)
