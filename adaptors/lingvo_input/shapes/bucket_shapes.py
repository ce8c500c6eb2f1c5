"""The shapes of a bucketed input: one length and one batch size per bucket.

Lingvo's readers sort examples into buckets by length but mostly pad every batch
to `target_max_length`, and their batches may come short. XLA compiles once for
each shape, so batches are cut or extended here to few shapes.

Legend: B batch, T time.
"""

import bisect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap

# Batches that wait for others of their shape are held in memory.
_MOST_SHAPES = 64


def pad_rows(batch: NestedMap, rows: int) -> NestedMap:
  """Returns `batch` with rows that do not count appended on axis 0.

  They are zeros, hence of weight 0, with paddings of 1 and empty texts.

  Args:
    batch: leaves [B, ...].
    rows: the batch size to reach, at least B.
  """

  def pad(path, x):
    value = example_rows.padding_value(path)
    return host_fields.extended(x, rows - x.shape[0], value=value)

  return jax.tree_util.tree_map_with_path(pad, batch)


def batch_rows(batch: NestedMap) -> int | None:
  """Returns the batch size, None where leaves disagree or have no axis."""
  sizes = set()
  _collect_rows(batch.values(), sizes)
  return sizes.pop() if len(sizes) == 1 else None


def first_rows(batch: NestedMap) -> int:
  """Returns the batch size; that of the first leaf where leaves disagree.

  They may where some are not by example.
  """
  rows = batch_rows(batch)
  if rows is not None:
    return rows
  sizes = [x.shape[0] for x in jax.tree.leaves(batch) if x.ndim]
  return sizes[0] if sizes else 1


def _collect_rows(nodes: Iterable[Any], sizes: set[int | None]):
  # Not by jax.tree, whose code is in no cache when a batch comes.
  for x in nodes:
    if isinstance(x, dict):
      _collect_rows(x.values(), sizes)
    elif isinstance(x, (list, tuple)):
      _collect_rows(x, sizes)
    elif x is not None:
      sizes.add(x.shape[0] if x.ndim else None)


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
    is_so_everywhere: Callable[[bool], bool] | None = None,
  ):
    """Reads the buckets off the Params of a generator.

    Args:
      params: Lingvo Params.
      fit_lengths: whether batches are brought to the bounds of the buckets,
        lengths that the generator makes up for each batch among them, wherever
        in a batch they are.
      is_so_everywhere: returns whether all hosts have found so what this one
        has found in its first batch; None if there is one host only.
    """
    self.bounds = tuple(getattr(params, 'bucket_upper_bound', None) or ())
    self.limits = tuple(getattr(params, 'bucket_batch_limit', None) or ())
    self._longest = getattr(params, 'target_max_length', None)
    self.lengths = ()
    self._fit_lengths = fit_lengths
    self._is_so_everywhere = is_so_everywhere or bool
    self._told_lengths = {
      n
      for field in ('source_max_length', 'target_max_length')
      if (n := getattr(params, field, None))
    }
    # Of each map of a batch whether all of its lengths so far were such a one.
    self._has_told_length: dict[tuple[str, ...], bool] = {}
    self._said = False
    if fit_lengths and len(self.bounds) > 1:
      self.lengths = _lengths_of_bounds(self.bounds, self._longest)
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
    real = self._real(batch)
    if real is None:
      return None
    self._check_keys(batch.get('bucket_keys'), real)
    allowed = np.array([*self.lengths, 0])
    return allowed[np.searchsorted(self.lengths, _needed(real))]

  def _real(self, batch: NestedMap) -> np.ndarray | None:
    """Returns which positions [B, T] count; None where T is to be left."""
    paddings = batch.get('paddings')
    if not self.lengths or paddings is None or paddings.ndim != 2:
      return None
    return paddings < 0.5

  def _check_keys(self, keys: np.ndarray | None, real: np.ndarray):
    """Finds out from the first batch whether bucket keys count positions.

    Where they count something else, as those of LmInput count words whatever
    its tokenizer makes of them, bounds say nothing of lengths. Then there are
    as many lengths as buckets, each the half of the next.
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
    key = batch['bucket_keys'].max()
    return min(bisect.bisect_left(self.bounds, key), last)

  def fit(
    self, batch: NestedMap, rows: int | None, fixed_lengths: NestedMap
  ) -> NestedMap:
    """Returns a batch of the shape of its bucket.

    Args:
      batch: leaves [B, ...], of any B up to the bucket's limit.
      rows: B; None where leaves disagree, and shapes are to be left.
      fixed_lengths: of each leaf T, None where batches differ in it.

    Returns:
      The batch with T cut or extended to the smallest allowed length that holds
      it, and with rows that do not count up to the bucket's limit. It is the
      same object where nothing was to be changed.
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
    """Returns a batch of the smallest allowed length that holds all rows.

    Unchanged where there is none.
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
    """Returns a batch whose varying lengths became those of its bucket.

    A generator that pads each batch to its longest example gives it few shapes
    then, if no bucket key is below what it is the key of.

    Args:
      batch: maps of leaves [B, T, ...], some with `paddings` [B, T].
      fixed_lengths: of each leaf T, None where batches differ in it.
    """
    if not self._fit_lengths or not self.bounds:
      return batch
    length = self.bounds[self._bucket_by_key(batch)] + 1
    return self._with_least_length(batch, fixed_lengths, length, ())

  def _with_least_length(
    self, batch: NestedMap, fixed: NestedMap, length: int, path: tuple[str, ...]
  ) -> NestedMap:
    """Returns a batch with the time axis of its maps extended where it varies.

    Args:
      batch: maps of leaves [B, T, ...], some with `paddings` [B, T].
      fixed: of each leaf T, None where batches differ in it.
      length: the least T.
      path: of the batch, where it is part of another one.
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
    if self._is_told(path, paddings.shape[1]):
      return batch
    self._say_once(path)
    return set_length(batch, max(length, paddings.shape[1]))

  def _is_told(self, path: tuple[str, ...], length: int) -> bool:
    """Returns whether a map has the length that its Params say, each time.

    It is not one of the bucket's then: targets of utterances are padded to
    `target_max_length`, while their buckets count frames.
    """
    is_told = length in self._told_lengths and length <= self.bounds[-1]
    always = is_told and self._has_told_length.get(path, True)
    self._has_told_length[path] = always
    return always

  def _say_once(self, path: tuple[str, ...]):
    if self._said:
      return
    self._said = True
    logging.info(
      'the generator pads %s to the longest example of each batch: batches are'
      ' padded to the length of their bucket, %s, so that the step is compiled'
      ' once for each, and not for each batch (pad_to_bucket_bounds=False'
      ' leaves them as they are)',
      '.'.join(path) or 'batches',
      ' or '.join(str(n + 1) for n in self.bounds),
    )


def check_few_shapes(name: str, shapes: Collection[Any], batch: NestedMap):
  """Raises where batches, which wait for others of their shape, have too many.

  Args:
    name: how messages call the input.
    shapes: those that there were so far.
    batch: the last one.

  Raises:
    UserError: there are too many.
  """
  if len(shapes) > _MOST_SHAPES:
    raise errors.UserError(
      f'{name}: hosts feed batches of equal shapes, and the generator gave'
      f' {len(shapes)} shapes, such as'
      f' { {path: x.shape for path, x in batch.flatten_items()} }; expected a'
      ' few. Make it pad its batches to the bounds of its buckets'
    )


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


def _needed(real: np.ndarray) -> np.ndarray:
  """Returns the least T [B] that holds what counts of each row [B, T]."""
  last = real.shape[1] - real[:, ::-1].argmax(axis=1)
  return np.where(real.any(axis=1), last, 0)


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

  def cut(x):
    return x[:, :length] if x.shape[:2] == shape else x

  def extend(path, x):
    if x.shape[:2] != shape:
      return x
    value = example_rows.padding_value(path)
    return host_fields.extended(x, length - shape[1], axis=1, value=value)

  if length <= shape[1]:
    return jax.tree.map(cut, batch)
  return jax.tree_util.tree_map_with_path(extend, batch)
