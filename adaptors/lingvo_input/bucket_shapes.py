"""The shapes of a bucketed input: one length and one batch size per bucket.

Lingvo's readers sort examples into buckets by length but mostly pad every batch
to `target_max_length`, and their batches may come short. XLA compiles once for
each shape, so batches are cut or extended here to few shapes.

Legend: B batch, T time.
"""

from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import errors, example_rows, host_fields
from pax_compat.nested_map import NestedMap


def pad_rows(batch: NestedMap, rows: int) -> NestedMap:
  """Returns `batch` with rows that do not count appended on axis 0.

  They are zeros, hence of weight 0, with paddings of 1 and empty texts.

  Args:
    batch: leaves [B, ...].
    rows: the batch size to reach, at least B.
  """

  def pad(path, x):
    value = 1 if example_rows.is_padding(path) else 0
    return host_fields.extended(x, rows - x.shape[0], value=value)

  return jax.tree_util.tree_map_with_path(pad, batch)


def batch_rows(batch: NestedMap) -> int | None:
  """Returns the batch size, None where leaves disagree or have no axis."""
  sizes = {x.shape[0] if x.ndim else None for x in jax.tree.leaves(batch)}
  return sizes.pop() if len(sizes) == 1 else None


class Buckets:
  """The buckets of an input, and the shapes that their batches get.

  Attributes:
    bounds: the longest bucket key of each bucket; empty without buckets.
    limits: the batch size of each bucket.
    lengths: the allowed time lengths, rising; empty where T is left alone.
  """

  def __init__(
    self,
    params: Any,
    *,
    fit_lengths: bool,
    one_shape: bool,
    lengths_agree: bool = False,
  ):
    """Reads the buckets off the Params of a generator.

    Args:
      params: Lingvo Params.
      fit_lengths: whether batches are brought to the bounds of the buckets.
      one_shape: whether all batches, of whatever bucket, get the same shape.
      lengths_agree: whether lengths that the generator makes up for each batch
        become those of the bucket, wherever in a batch they are.
    """
    self.bounds = tuple(getattr(params, 'bucket_upper_bound', None) or ())
    self.limits = tuple(getattr(params, 'bucket_batch_limit', None) or ())
    self._longest = getattr(params, 'target_max_length', None)
    self.lengths = ()
    self._lengths_agree = fit_lengths and lengths_agree
    self._one_shape = one_shape
    if fit_lengths and len(self.bounds) > 1:
      self.lengths = _lengths_of_bounds(self.bounds, self._longest)
    if one_shape and self.bounds:
      self.limits = (max(self.limits),) * len(self.limits)
      self.lengths = self.lengths[-1:]
    # The reader moves the bounds where it adjusts them.
    self._keyed = not getattr(params, 'bucket_adjust_every_n', 0)
    self._keys_were_checked = len(self.lengths) < 2 or not self._longest

  def shapes(self) -> list[tuple[int, int | None]]:
    """Returns the (batch, time) that batches may have.

    Time is None where it is left as the generator gives it.
    """
    lengths = self.lengths or (None,)
    return [(rows, n) for n in lengths for rows in sorted(set(self.limits))]

  def row_lengths(self, batch: NestedMap) -> np.ndarray | None:
    """Returns the allowed length of each row [B], 0 for what fits into none.

    Args:
      batch: leaves [B, T, ...], with `paddings` [B, T].

    Returns:
      The lengths, None where T is to be left as it is.
    """
    paddings = batch.get('paddings')
    if not self.lengths or paddings is None or paddings.ndim != 2:
      return None
    real = paddings < 0.5
    needed = np.where(
      real.any(axis=1), real.shape[1] - real[:, ::-1].argmax(axis=1), 0
    )
    self._check_keys(batch.get('bucket_keys'), needed)
    allowed = np.array([*self.lengths, 0])
    return allowed[np.searchsorted(self.lengths, needed)]

  def _check_keys(self, keys: np.ndarray | None, needed: np.ndarray):
    """Finds out from the first batch whether bucket keys count positions.

    Where they count something else, as those of LmInput count words whatever
    its tokenizer makes of them, bounds say nothing of lengths. Then there are
    as many lengths as buckets, each the half of the next.
    """
    if self._keys_were_checked:
      return
    self._keys_were_checked = True
    if keys is None or np.all(needed <= np.asarray(keys) + 1):
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
    """Returns the index of the bucket that a batch comes from."""
    if 'bucket_keys' in batch and self._keyed:
      return self._bucket_by_key(batch)
    fitting = [(n, i) for i, n in enumerate(self.limits) if n >= rows]
    return min(fitting)[1] if fitting else None

  def _bucket_by_key(self, batch: NestedMap) -> int:
    """Returns the index of the bucket by the keys, else that of the last."""
    last = len(self.bounds) - 1
    if 'bucket_keys' not in batch or not self._keyed:
      return last
    return min(
      int(np.searchsorted(self.bounds, np.max(batch.bucket_keys))), last
    )

  def fit(self, batch: NestedMap, fixed_lengths: NestedMap) -> NestedMap:
    """Returns a batch of the shape of its bucket.

    Args:
      batch: leaves [B, ...], of any B up to the bucket's limit.
      fixed_lengths: of each leaf T, None where batches differ in it.

    Returns:
      The batch with T cut or extended to the smallest allowed length that holds
      it, and with rows that do not count up to the bucket's limit.
    """
    rows = batch_rows(batch)
    if not self.bounds or not rows:
      return batch
    lengths = self.row_lengths(batch)
    if lengths is not None and lengths.all():
      batch = set_length(batch, int(lengths.max()))
    bucket = self._bucket_of(batch, rows)
    if lengths is None:
      batch = self.extended(batch, fixed_lengths)
    if bucket is None or rows >= self.limits[bucket]:
      return batch
    return pad_rows(batch, self.limits[bucket])

  def extended(self, batch: NestedMap, fixed_lengths: NestedMap) -> NestedMap:
    """Returns a batch whose varying lengths became those of its bucket.

    A generator that pads each batch to its longest example gives it few shapes
    then, if no bucket key is below what it is the key of.

    Args:
      batch: maps of leaves [B, T, ...], some with `paddings` [B, T].
      fixed_lengths: of each leaf T, None where batches differ in it.
    """
    if not self._lengths_agree or not self.bounds:
      return batch
    bucket = -1 if self._one_shape else self._bucket_by_key(batch)
    return _with_least_length(batch, fixed_lengths, self.bounds[bucket] + 1)


class OneShape:
  """Raises where batches differ in shape: hosts would wait for each other."""

  def __init__(self, name: str):
    """Has seen no batch.

    Args:
      name: how messages call the input.
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
  """Returns the lengths of buckets whose keys count positions, rising."""
  # + 1: the bucket key does not count the end-of-sequence symbol.
  lengths = {b + 1 for b in bounds}
  if longest:
    lengths = {min(n, longest) for n in lengths} | {longest}
  return tuple(sorted(lengths))


def _with_least_length(
  batch: NestedMap, fixed: NestedMap, length: int
) -> NestedMap:
  """Returns a batch with the time axis of its maps extended where it varies.

  Args:
    batch: maps of leaves [B, T, ...], some with `paddings` [B, T].
    fixed: of each leaf T, None where batches differ in it.
    length: the least T.
  """
  batch = NestedMap(
    {
      key: _with_least_length(x, fixed[key], length)
      if isinstance(x, NestedMap)
      else x
      for key, x in batch.items()
    }
  )
  paddings = batch.get('paddings')
  if getattr(paddings, 'ndim', 0) != 2 or fixed.get('paddings') is not None:
    return batch
  return set_length(batch, max(length, paddings.shape[1]))


def set_length(batch: NestedMap, length: int) -> NestedMap:
  """Returns a batch with the time axis cut or extended.

  Args:
    batch: leaves [B, T, ...] of the T of `paddings` are changed; others stay.
    length: the new T.

  Returns:
    The batch; what is added is 1 in paddings, an empty text or 0 elsewhere.
  """
  if batch.paddings.shape[1] == length:
    return batch
  shape = batch.paddings.shape

  def change(path, x):
    if x.shape[:2] != shape:
      return x
    if length <= shape[1]:
      return x[:, :length]
    value = 1 if example_rows.is_padding(path) else 0
    return host_fields.extended(x, length - shape[1], axis=1, value=value)

  return jax.tree_util.tree_map_with_path(change, batch)
