"""The batches of one host from a stream of all examples.

All hosts read the examples in one order, of which B * H successive ones are a
global batch; host h has the h-th B of these.

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

# Provenance of an example; the names are Pax's. As all hosts read one order,
# the index is that in all data, as a single shard.
INDEX = '_seqio_provenance/index_within_shard'
SHARD = '_seqio_provenance/shard_index'
SHARDS = '_seqio_provenance/num_shards'
PROVENANCE = (INDEX, SHARD, SHARDS)


class Position(NamedTuple):
  """A position in the order.

  Attributes:
    epoch: number of datasets read completely.
    row: number of examples read of the current one.
    count: number of examples read in all.
  """

  epoch: int = 0
  row: int = 0
  count: int = 0


class Chunk(NamedTuple):
  """Successive examples.

  Attributes:
    epoch: index of their dataset.
    row: index of the first one in it.
    examples: leaves [n, ...].
  """

  epoch: int
  row: int
  examples: NestedMap


class Share(NamedTuple):
  """The rows of one host in a global batch.

  Attributes:
    examples: leaves [up to B, ...]; None if it has no rows.
    first: the first example of the global batch, leaves [1, ...].
    start: number of examples before the global batch.
    size: number of examples in the global batch, at most B * H.
    next: position of the next global batch.
  """

  examples: NestedMap | None
  first: NestedMap
  start: int
  size: int
  next: Position


class Digest:
  """A digest of the examples that were read, in their order."""

  def __init__(self):
    self._hash = hashlib.blake2b(digest_size=8)

  def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yields the chunks and updates the digest."""
    for chunk in chunks:
      for leaf in jax.tree.leaves(chunk.examples):
        self._hash.update(host_fields.canonical_bytes(leaf))
      yield chunk

  @property
  def value(self) -> bytes:
    """The digest: 8 bytes."""
    return self._hash.digest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharing:
  """Splits global batches into rows of hosts, for one host.

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
    """Returns the number of the host's examples among `count`."""
    batches, rest = divmod(count, self.global_size)
    own = min(max(rest - self.batch_size * self.host, 0), self.batch_size)
    return batches * self.batch_size + own

  def shares(self, chunks: Iterable[Chunk], count: int) -> Iterator[Share]:
    """Yields the rows of the host in each global batch.

    Only the last one may be smaller.

    Args:
      chunks: the examples.
      count: number of examples before them.
    """
    pieces, first, size, position = [], None, 0, Position()
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
        position = Position(chunk.epoch, chunk.row + start, count + size)
        if size == self.global_size:
          yield Share(_joined(pieces), first, count, size, position)
          pieces, first, count, size = [], None, count + size, 0
    if size:
      yield Share(_joined(pieces), first, count, size, position)

  def batch(self, share: Share, *, blank_padding: bool) -> NestedMap:
    """Returns a full batch, leaves [B, ...], with weights and provenance.

    Padding rows are copies of the global batch's first example, with weight 0.

    Args:
      share: the rows of the host.
      blank_padding: whether all positions of padding rows are also marked as
        padding.
    """
    real = (
      example_rows.num_rows(share.examples) if share.examples is not None else 0
    )
    pieces = [] if share.examples is None else [self.real(share)]
    if real < self.batch_size:
      pieces.append(
        _padding_rows(
          share.first, self.batch_size - real, is_blank=blank_padding
        )
      )
    return _joined(pieces)

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


def _padding_rows(
  example: NestedMap, count: int, *, is_blank: bool
) -> NestedMap:
  """Returns `count` copies of an example [1, ...], with weight 0."""
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
