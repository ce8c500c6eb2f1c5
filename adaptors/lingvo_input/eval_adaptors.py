"""Feeds a finite Lingvo input to evaluation: one epoch, padded and sharded.

Legend: B examples of a host in a batch, H hosts, T time.
"""

import hashlib
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_input.checks import generator_kinds
from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap


class LingvoEvalAdaptor(input_adaptor.LingvoInputAdaptor):
  """Gives every example of a Lingvo input exactly once, over all hosts.

  Every host reads the whole data in the same order and keeps its share: B * H
  successive examples of one shape (the same length bucket) make up a global
  batch, of which host h has the h-th B. At the end of the data what is left of
  each shape is filled up with copies of its first example that weigh nothing.
  So all hosts give equally many batches, though some may hold no real example.

  No more than B examples of each shape are held in memory.

  Attributes:
    batch_size: examples of this host in a batch; required.
    reset_for_eval: must be True.

  Raises:
    UserError: the fields do not go together, the leaves have no common batch
      axis, or the input does not end.
  """

  def __post_init__(self):
    super().__post_init__()
    self._num_samples = None
    self._epoch = None
    self._digest = hashlib.blake2b(digest_size=8)

  def _check_batch_size(self):
    if self.is_training:
      raise errors.UserError(
        f'{self._told_name()}: is_training is True; expected False, or a'
        ' LingvoInputAdaptor'
      )
    if self.replay:
      raise errors.UserError(
        f'{self._told_name()}: replay is True; leave it False, as the order is'
        ' always that of the files'
      )
    if not self.reset_for_eval:
      raise errors.UserError(
        f'{self._told_name()}: reset_for_eval is False; expected True, as one'
        ' epoch is read for each evaluation'
      )
    size = self.batch_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
      raise errors.UserError(
        f'{self._told_name()}: batch_size is {size!r}; expected how many'
        ' examples of this host make a batch'
      )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns how many examples of one process a batch has."""
    return params.batch_size

  def _own_params(self):
    params = self.input.Copy()
    if 'repeat_count' in params and not generator_kinds.is_tf_data(params):
      params.repeat_count = 1
      params.flush_every_n = 0
      logging.info(
        '%s: one epoch in the order of the files (repeat_count=1 with'
        ' require_sequential_input_order), so file_random_seed and the'
        ' shuffle buffer play no role',
        self._told_name(),
      )
    generator_kinds.check_unpacked(
      self._told_name(), params, do_eval=self.cluster_do_eval
    )
    if generator_kinds.is_permuted(params) and not params.random_seed:
      params.random_seed = 1  # One order for all hosts.
    return params

  def _hosts_differ(self) -> bool:
    return False  # All hosts read the same order.

  def _cluster_options(self):
    options = super()._cluster_options()
    # All hosts must see one order, so no thread may overtake another.
    several = self.num_infeed_hosts > 1
    return {
      **options,
      'require_sequential_input_order': True,
      'keeps_order': several,
    }

  def _build(self):
    """Returns a driver whose last batch may come short.

    Where the generator fixes its batch size, a short batch would fail or be
    dropped, so its examples are read one by one.
    """
    single = _with_reader_batch(self._params, 1)
    try:
      driver = super()._build()
      if driver.static_batch in (None, 1):
        return driver
      driver.close()
      reason = f'its batches have the fixed size {driver.static_batch}'
    except errors.UserError as e:
      # It may have failed on a first batch that came short.
      if single == self._params:
        raise
      reason = str(e)
    self._log_once('it is read example by example, as %s', reason)
    self._params = single
    return super()._build()

  @property
  def num_samples(self) -> int | None:
    """Real examples of all hosts in an epoch; None before the first ended."""
    return self._num_samples

  def _next_batch(self) -> NestedMap:
    if self._epoch is None:
      self._epoch = self._read_epoch()
    return next(self._epoch)

  def _free(self):
    super()._free()
    self._epoch = None
    self._digest = hashlib.blake2b(digest_size=8)

  def order_digest(self) -> bytes | None:
    """Returns 8 bytes that tell what was read since the last reset.

    All hosts read everything in the same order, so after each batch they have
    the same digest; where not, their data or its order differs. None where one
    host reads alone.
    """
    return self._digest.digest() if self.num_infeed_hosts > 1 else None

  def _note_order(self, batch: NestedMap):
    if self.num_infeed_hosts > 1:
      for leaf in jax.tree.leaves(batch):
        self._digest.update(host_fields.canonical_bytes(leaf))

  def _read_epoch(self):
    """Yields this host's batches of one epoch."""
    groups, count, guard = {}, 0, self._guard()
    for batch in self._read_all():
      count += self._checked_rows(batch)
      guard(batch, count)
      self._note_order(batch)
      fixed = self._live_driver().fixed_lengths
      for piece in _by_length(batch, self._buckets, fixed):
        # Bounded: as many groups as there are shapes.
        key = tuple(x.shape[1:] for x in jax.tree.leaves(piece))
        if key not in groups:
          groups[key] = _Group(
            batch_size=self.batch_size,
            num_hosts=self.num_infeed_hosts,
            host=self.infeed_host_index,
          )
        yield from groups[key].add(piece)
    for key in sorted(groups):
      yield from groups[key].flush()
    self._note_count(count)

  def _read_all(self):
    """Yields the reader's batches of one epoch."""
    while True:
      try:
        batch = self._read()
      except StopIteration:
        return
      yield batch

  def _checked_rows(self, batch) -> int:
    rows = bucket_shapes.batch_rows(batch)
    if rows is None:
      shapes = {k: x.shape for k, x in batch.flatten_items()}
      raise errors.UserError(
        f'{self._told_name()}: the leaves have no common batch axis to take'
        f' single examples from: {shapes}'
      )
    return rows

  def _note_count(self, count: int):
    self._num_samples = count
    told = getattr(self._params, 'num_samples', 0)
    if told and told != count:
      logging.warning(
        '%s: input.num_samples is %d, but the data gave %d examples',
        self._told_name(),
        told,
        count,
      )


class LingvoLazyEvalAdaptor(LingvoEvalAdaptor):
  """Gives the first `input.num_samples` examples of a Lingvo input, each once.

  It is a `LingvoEvalAdaptor` for inputs that repeat, and know how many examples
  they have: these are an epoch. Batches have `input.batch_size` examples of
  each host.

  Attributes:
    batch_size: None; the input's is taken.

  Raises:
    UserError: as for a `LingvoEvalAdaptor`; or the input does not say how many
      examples it has, or in a batch, or has fewer than it says.
  """

  def _check_batch_size(self):
    size = getattr(self.input, 'batch_size', None)
    if self.batch_size not in (None, size):
      raise errors.UserError(
        f'{self._told_name()}: batch_size is {self.batch_size}; leave it None,'
        ' and set input.batch_size'
      )
    if not size:
      raise errors.UserError(
        f'{self._told_name()}: input.batch_size is {size!r}; expected how many'
        ' examples of this host make a batch'
      )
    self.batch_size = size
    super()._check_batch_size()
    self._wanted = getattr(self.input, 'num_samples', 0)
    if not self._wanted or self._wanted < 0:
      raise errors.UserError(
        f'{self._told_name()}: input.num_samples is {self._wanted!r}; expected'
        ' how many examples there are, or a LingvoEvalAdaptor for an input that'
        ' ends by itself'
      )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns how many examples of one process a batch has."""
    return params.input.batch_size

  @property
  def num_samples(self) -> int:
    """Real examples of all hosts in an epoch."""
    return self._wanted

  def _reads_all(self):
    return False  # It ends by the count.

  def _read_all(self):
    left = self._wanted
    for batch in super()._read_all():
      rows = self._checked_rows(batch)
      yield _rows(batch, 0, left) if rows > left else batch
      left -= rows
      if left <= 0:
        return
    raise errors.UserError(
      f'{self._told_name()} ended after {self._wanted - left} examples;'
      f' expected the {self._wanted} of input.num_samples'
    )


class _Group:
  """Gathers the examples of one shape into global batches of B * H.

  Only the B of this host are kept, and the first of the global batch, which
  fills up what is missing at the end.
  """

  def __init__(self, *, batch_size: int, num_hosts: int, host: int):
    self._size = batch_size
    self._total = batch_size * num_hosts
    self._own = (batch_size * host, batch_size * (host + 1))
    self._seen = 0
    self._first = None
    self._pieces = []

  def add(self, examples: NestedMap):
    """Takes examples [n, ...]; yields the batches [B, ...] that got full."""
    start, n = 0, bucket_shapes.batch_rows(examples)
    while start < n:
      taken = min(n - start, self._total - self._seen)
      self._take(examples, start, taken)
      start += taken
      if self._seen == self._total:
        yield self._batch()

  def _take(self, examples, start, count):
    # Copied: a view would keep the whole batch of the reader alive.
    if self._first is None:
      self._first = _rows(examples, start, start + 1)
    low = max(self._own[0] - self._seen, 0)
    high = min(self._own[1] - self._seen, count)
    if low < high:
      self._pieces.append(_rows(examples, start + low, start + high))
    self._seen += count

  def flush(self):
    """Yields the last batch, padded, if there is any example left."""
    if self._seen:
      have = sum(bucket_shapes.batch_rows(p) for p in self._pieces)
      if have < self._size:
        self._pieces.append(
          example_rows.padding_rows(self._first, self._size - have)
        )
      yield self._batch()

  def _batch(self) -> NestedMap:
    batch = jax.tree.map(lambda *x: np.concatenate(x), *self._pieces)
    self._seen, self._first, self._pieces = 0, None, []
    return batch


def _rows(batch: NestedMap, start: int, stop: int) -> NestedMap:
  return jax.tree.map(lambda x: x[start:stop].copy(), batch)


def _by_length(
  batch: NestedMap,
  buckets: bucket_shapes.Buckets,
  fixed_lengths: NestedMap,
):
  """Yields the examples of each allowed length, brought to that length."""
  lengths = buckets.row_lengths(batch)
  if lengths is None:
    yield buckets.extended(batch, fixed_lengths)
    return
  for length in np.unique(lengths):
    rows = np.flatnonzero(lengths == length)
    piece = jax.tree.map(lambda x, rows=rows: x[rows], batch)
    if length:  # 0: longer than every bucket, left as the generator gave it.
      piece = bucket_shapes.set_length(piece, int(length))
    yield piece


def _with_reader_batch(params: Any, size: int) -> Any:
  """Returns a copy of a generator's Params with another batch size."""
  params = params.Copy()
  if 'bucket_batch_limit' in params:
    params.bucket_batch_limit = [size] * len(params.bucket_batch_limit)
  elif 'batch_size' in params:
    params.batch_size = size
  return params
