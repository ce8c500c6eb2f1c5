"""The shapes of a bucketed input: one length and one batch size per bucket.

Lingvo's readers sort examples into buckets by length but mostly pad every batch
to `target_max_length`, and the last batches may be short. XLA compiles once for
each shape, so batches are padded, or truncated, to one shape for each bucket.
With

    bucket_upper_bound   10, 20, 40    (of bucket keys, lengths are 1 more)
    bucket_batch_limit    8,  4,  2
    target_max_length    50

batches become

    bucket key   rows   T from Lingvo        rows   T
    5..9           8         50         ->     8   11     truncated
    12..19         3         50         ->     4   21     and a padding row
    33..40         2         50         ->     2   41

Legend: B batch, T time.
"""

import bisect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap


def pad_rows(batch: NestedMap, rows: int) -> NestedMap:
  """Returns `batch` with padding rows appended.

  They have weight 0, paddings of 1, empty strings and zeros elsewhere.

  Args:
    batch: leaves [B, ...].
    rows: the batch size to reach, at least B.
  """

  def pad(path, x):
    value = example_rows.padding_value(path)
    return host_fields.extended(x, rows - x.shape[0], value=value)

  return jax.tree_util.tree_map_with_path(pad, batch)


def batch_rows(batch: NestedMap) -> int | None:
  """Returns the batch size; None if leaves differ in it or have no axis."""
  sizes = set()
  _collect_rows(batch.values(), sizes)
  return sizes.pop() if len(sizes) == 1 else None


def first_rows(batch: NestedMap) -> int:
  """Returns the batch size; that of the first leaf if leaves differ in it.

  They may, if some have another leading axis.
  """
  rows = batch_rows(batch)
  if rows is not None:
    return rows
  sizes = [x.shape[0] for x in jax.tree.leaves(batch) if x.ndim]
  return sizes[0] if sizes else 1


def _collect_rows(nodes: Iterable[Any], sizes: set[int | None]):
  # Faster than jax.tree, whose code is in no cache when a batch comes.
  for x in nodes:
    if isinstance(x, dict):
      _collect_rows(x.values(), sizes)
    elif isinstance(x, (list, tuple)):
      _collect_rows(x, sizes)
    elif x is not None:
      sizes.add(x.shape[0] if x.ndim else None)


class Buckets:
  """The buckets of an input, and the shapes that their batches get.

  >>> from types import SimpleNamespace
  >>> params = SimpleNamespace(
  ...   bucket_upper_bound=[10, 20, 40],
  ...   bucket_batch_limit=[8, 4, 2],
  ...   target_max_length=50,
  ... )
  >>> buckets = Buckets(params, fit_lengths=True)
  >>> buckets.lengths
  (11, 21, 41, 50)
  >>> paddings = np.ones([3, 50])
  >>> paddings[:, :17] = 0
  >>> batch = NestedMap(ids=np.ones([3, 50], int), paddings=paddings)
  >>> fixed = NestedMap(ids=50, paddings=50)
  >>> batch = buckets.fit(batch, 3, fixed)
  >>> batch.ids.shape, batch.paddings.sum(axis=1).tolist()
  ((4, 21), [4.0, 4.0, 4.0, 21.0])

  Attributes:
    bounds: the largest bucket key of each bucket; empty without buckets.
    limits: the batch size of each bucket.
    lengths: the allowed T, ascending; empty if T is left unchanged.
  """

  def __init__(
    self,
    params: Any,
    *,
    fit_lengths: bool,
    is_so_everywhere: Callable[[bool], bool] | None = None,
  ):
    """Reads the buckets off the Params of a generator.

    Args:
      params: Lingvo Params.
      fit_lengths: whether batches are padded, or truncated, to the bounds of
        the buckets. That includes nested maps whose length the generator
        chooses for each batch.
      is_so_everywhere: returns whether a finding is true on all hosts; None if
        there is one host only.
    """
    self.bounds = tuple(getattr(params, 'bucket_upper_bound', None) or ())
    self.limits = tuple(getattr(params, 'bucket_batch_limit', None) or ())
    self._longest = getattr(params, 'target_max_length', None)
    self.lengths = ()
    self._fit_lengths = fit_lengths
    self._is_so_everywhere = is_so_everywhere or bool
    self._set_lengths = {
      n
      for field in ('source_max_length', 'target_max_length')
      if (n := getattr(params, field, None))
    }
    # By path in a batch: whether all lengths so far were one of these.
    self._has_set_length: dict[tuple[str, ...], bool] = {}
    self._was_logged = False
    if fit_lengths and len(self.bounds) > 1:
      self.lengths = _lengths_of_bounds(self.bounds, self._longest)
    # The reader moves the bounds where it adjusts them.
    self._keyed = not getattr(params, 'bucket_adjust_every_n', 0)
    self._keys_were_checked = len(self.lengths) < 2 or not self._longest

  def shapes(self) -> list[tuple[int, int | None]]:
    """Returns the (B, T) that batches may have.

    T is None if it is left as the generator returns it.
    """
    lengths = self.lengths or (None,)
    return [(rows, n) for n in lengths for rows in sorted(set(self.limits))]

  def row_lengths(self, batch: NestedMap) -> np.ndarray | None:
    """Returns the allowed length of each row [B], 0 if it is too long.

    Args:
      batch: leaves [B, T, ...], with `paddings` [B, T].

    Returns:
      The lengths; None if T is left unchanged.
    """
    real = self._real(batch)
    if real is None:
      return None
    self._check_keys(batch.get('bucket_keys'), real)
    allowed = np.array([*self.lengths, 0])
    return allowed[np.searchsorted(self.lengths, _needed(real))]

  def _real(self, batch: NestedMap) -> np.ndarray | None:
    """Returns which positions [B, T] are real; None if T is left unchanged."""
    paddings = batch.get('paddings')
    if not self.lengths or paddings is None or paddings.ndim != 2:
      return None
    return paddings < 0.5

  def _check_keys(self, keys: np.ndarray | None, real: np.ndarray):
    """Finds from the first batch whether bucket keys count positions.

    If they count something else, as LmInput counts words with any tokenizer,
    bounds are unrelated to lengths. Then there are as many lengths as buckets,
    each the half of the next.
    """
    if self._keys_were_checked:
      return
    self._keys_were_checked = True
    counted = keys is None or np.all(_needed(real) <= np.asarray(keys) + 1)
    if self._is_so_everywhere(bool(counted)):
      return
    halves = [self._longest >> i for i in range(len(self.bounds))]
    self.lengths = tuple(sorted(n for n in halves if n))
    logging.info(
      'the keys of the buckets %s do not count positions: batches get the'
      ' lengths %s instead',
      self.bounds,
      self.lengths,
    )

  def _bucket_of(self, batch: NestedMap, rows: int) -> int | None:
    """Returns the index of the bucket of a batch."""
    if 'bucket_keys' in batch and self._keyed:
      return self._bucket_by_key(batch)
    fitting = [(n, i) for i, n in enumerate(self.limits) if n >= rows]
    return min(fitting)[1] if fitting else None

  def _bucket_by_key(self, batch: NestedMap) -> int:
    """Returns the index of the bucket by the keys; without keys, the last."""
    last = len(self.bounds) - 1
    if 'bucket_keys' not in batch or not self._keyed:
      return last
    key = batch['bucket_keys'].max()
    return min(bisect.bisect_left(self.bounds, key), last)

  def fit(
    self, batch: NestedMap, rows: int | None, fixed_lengths: NestedMap
  ) -> NestedMap:
    """Returns a batch padded, or truncated, to the shape of its bucket.

    Args:
      batch: leaves [B, ...], of any B up to the bucket's limit.
      rows: B; None if leaves differ in it, and shapes are left unchanged.
      fixed_lengths: T of each leaf; None if batches differ in it.

    Returns:
      The batch with the smallest allowed T that fits all real positions, and
      with padding rows up to the bucket's limit. It is the same object if
      nothing changes.
    """
    if not self.bounds or not rows:
      return batch
    real = self._real(batch)
    if real is None:
      batch = self.extended(batch, fixed_lengths)
    else:
      batch = self._with_allowed_length(batch, real)
    bucket = self._bucket_of(batch, rows)
    if bucket is None or rows >= self.limits[bucket]:
      return batch
    return pad_rows(batch, self.limits[bucket])

  def _with_allowed_length(self, batch: NestedMap, real: np.ndarray):
    """Returns a batch of the smallest allowed length that fits all rows.

    Unchanged if no length does.
    """
    self._check_keys(batch.get('bucket_keys'), real)
    # This takes a fifth of the time of `row_lengths`.
    used = real.any(axis=0).nonzero()[0]
    longest = used[-1] + 1 if used.size else 0
    if longest > self.lengths[-1]:
      return batch
    length = self.lengths[bisect.bisect_left(self.lengths, longest)]
    return set_length(batch, length)

  def extended(self, batch: NestedMap, fixed_lengths: NestedMap) -> NestedMap:
    """Returns a batch whose varying lengths are padded to those of its bucket.

    So a generator that pads each batch to its longest example has few shapes,
    if no bucket key is below the length of its example.

    Args:
      batch: maps of leaves [B, T, ...], some with `paddings` [B, T].
      fixed_lengths: T of each leaf; None if batches differ in it.
    """
    if not self._fit_lengths or not self.bounds:
      return batch
    length = self.bounds[self._bucket_by_key(batch)] + 1
    return self._with_least_length(batch, fixed_lengths, length, ())

  def _with_least_length(
    self, batch: NestedMap, fixed: NestedMap, length: int, path: tuple[str, ...]
  ) -> NestedMap:
    """Returns a batch with the varying time axes of its maps padded.

    Args:
      batch: maps of leaves [B, T, ...], some with `paddings` [B, T].
      fixed: T of each leaf; None if batches differ in it.
      length: the least T.
      path: of the map in the whole batch.
    """
    changed = {
      key: self._with_least_length(x, fixed[key], length, (*path, key))
      for key, x in batch.items()
      if isinstance(x, NestedMap)
    }
    if any(x is not batch[key] for key, x in changed.items()):
      batch = NestedMap({**batch, **changed})
    paddings = batch.get('paddings')
    if getattr(paddings, 'ndim', 0) != 2 or fixed.get('paddings') is not None:
      return batch
    if self._is_set(path, paddings.shape[1]):
      return batch
    self._log_once(path)
    return set_length(batch, max(length, paddings.shape[1]))

  def _is_set(self, path: tuple[str, ...], length: int) -> bool:
    """Returns whether a map always had a length that is set in the Params.

    Then it does not depend on the bucket: targets of utterances are padded to
    `target_max_length`, while their buckets count frames.
    """
    is_set = length in self._set_lengths and length <= self.bounds[-1]
    always = is_set and self._has_set_length.get(path, True)
    self._has_set_length[path] = always
    return always

  def _log_once(self, path: tuple[str, ...]):
    if self._was_logged:
      return
    self._was_logged = True
    logging.info(
      'the generator pads %s to the longest example of each batch: batches are'
      ' padded to the length of their bucket, %s, so that the step is compiled'
      ' once for each, and not for each batch (pad_to_bucket_bounds=False'
      ' leaves them as they are)',
      '.'.join(path) or 'batches',
      ' or '.join(str(n + 1) for n in self.bounds),
    )


class OneShape:
  """Raises if batches differ in shape: hosts would wait for each other."""

  def __init__(self, name: str):
    """Has seen no batch.

    Args:
      name: of the input, in messages.
    """
    self._name = name
    self._first = None

  def __call__(self, batch: NestedMap):
    shapes = {path: np.shape(x) for path, x in batch.flatten_items()}
    self._first = self._first or shapes
    if shapes != self._first:
      raise errors.UserError(
        f'{self._name}: several hosts must feed batches of one shape, and after'
        f' batches of {self._first} comes one of {shapes}; expected a generator'
        ' that pads to fixed lengths, or replay=True'
      )


def _lengths_of_bounds(bounds, longest: int | None) -> tuple[int, ...]:
  """Returns the lengths of buckets whose keys count positions, ascending."""
  # + 1: the bucket key does not count the end-of-sequence symbol.
  lengths = {b + 1 for b in bounds}
  if longest:
    lengths = {min(n, longest) for n in lengths} | {longest}
  return tuple(sorted(lengths))


def _needed(real: np.ndarray) -> np.ndarray:
  """Returns the least T [B] that fits the real positions of each row [B, T]."""
  last = real.shape[1] - real[:, ::-1].argmax(axis=1)
  return np.where(real.any(axis=1), last, 0)


def set_length(batch: NestedMap, length: int) -> NestedMap:
  """Returns a batch with the time axis truncated or padded.

  Args:
    batch: leaves [B, T, ...] with the T of `paddings` are changed; others stay.
    length: the new T.

  Returns:
    The batch. Padding is 1 in paddings, empty in strings and 0 elsewhere.
  """
  if batch.paddings.shape[1] == length:
    return batch
  shape = batch.paddings.shape

  def truncate(x):
    return x[:, :length] if x.shape[:2] == shape else x

  def pad(path, x):
    if x.shape[:2] != shape:
      return x
    value = example_rows.padding_value(path)
    return host_fields.extended(x, length - shape[1], axis=1, value=value)

  if length <= shape[1]:
    return jax.tree.map(truncate, batch)
  return jax.tree_util.tree_map_with_path(pad, batch)
