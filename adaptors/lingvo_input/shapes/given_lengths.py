"""Batches of inputs without buckets: many shapes, or padding to given lengths.

Without buckets a generator pads each batch to its longest example, and a step
is compiled for each shape of a batch.

Legend: B batch, T time.
"""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap

# After this many shapes a warning is logged, if they are not planned.
_FEW = 3
# The number of fields that the warning names.
_FIELDS_TO_NAME = 4


class ShapeWatch:
  """Logs a warning, once, if batches have many shapes; names the fields.

  >>> watch = ShapeWatch('the input', planned=0)
  >>> for t in (5, 7, 6):
  ...   watch(NestedMap(x=np.ones([2, t]), y=np.ones([2])))
  >>> watch.was_logged
  True

  Attributes:
    was_logged: whether the warning was logged.
  """

  def __init__(self, name: str, *, planned: int):
    """Has seen no batch.

    Args:
      name: of the input, in messages.
      planned: number of shapes that its buckets have; 0 without buckets.
    """
    self._name = name
    self._most = max(_FEW, planned + 1)
    self._shapes: dict[tuple, None] = {}
    self.was_logged = False

  def __call__(self, batch: NestedMap):
    """Takes a batch, leaves [B, ...]."""
    if self.was_logged:
      return
    items = batch.flatten_items()
    self._shapes[tuple((path, np.shape(x)) for path, x in items)] = None
    if len(self._shapes) >= self._most:
      self.was_logged = True
      self._warn()

  def _warn(self):
    seen: dict[str, dict[tuple, None]] = {}
    for shape in self._shapes:
      for path, sizes in shape:
        seen.setdefault(path, {})[sizes] = None
    differing = {path: list(sizes) for path, sizes in seen.items()}
    differing = {path: x for path, x in differing.items() if len(x) > 1}
    named = list(differing)[:_FIELDS_TO_NAME]
    more = len(differing) - len(named)
    logging.warning(
      '%s: the batches so far have %d shapes, and a step is compiled for each:'
      ' %s%s. Sort examples into buckets (bucket_upper_bound), or give the'
      ' input the lengths to pad to, such as pad_to_lengths=%r',
      self._name,
      len(self._shapes),
      '; '.join(
        f'{path} {", ".join(map(str, map(list, differing[path][:_FEW])))}'
        for path in named
      ),
      f' and {more} more fields' if more else '',
      {path: _rounded(differing[path]) for path in named},
    )


def _rounded(shapes: Sequence[tuple]) -> tuple[int, ...]:
  """Returns an example of lengths to pad to: the next power of two."""
  longest = max((s[1] for s in shapes if len(s) > 1), default=1)
  return (1 << (longest - 1).bit_length(),)


class GivenLengths:
  """Pads fields of batches to the smallest of the lengths that are given.

  >>> lengths = GivenLengths('the input', {'x': (4, 8), 'tgt': (10,)})
  >>> tgt = NestedMap(ids=np.ones([2, 6]), paddings=np.zeros([2, 6]))
  >>> batch = lengths(NestedMap(x=np.ones([2, 5, 3]), tgt=tgt))
  >>> batch.x.shape, batch.tgt.ids.shape, batch.tgt.paddings.sum()
  ((2, 8, 3), (2, 10), 8.0)

  Attributes:
    count: number of shapes that batches may get; 0 if no lengths are given.
  """

  def __init__(self, name: str, lengths: Mapping[str, Sequence[int]] | None):
    """Has seen no batch.

    Args:
      name: of the input, in messages.
      lengths: by dotted path; see `LingvoInputAdaptor.pad_to_lengths`.

    Raises:
      UserError: they are not lengths.
    """
    self._name = name
    self._lengths = {
      path: _checked(name, path, values)
      for path, values in (lengths or {}).items()
    }
    sizes = [len(values) for values in self._lengths.values()]
    self.count = int(np.prod(sizes)) if sizes else 0
    self._too_long: set[str] = set()

  def __call__(self, batch: NestedMap) -> NestedMap:
    """Returns a batch with longer fields; leaves [B, ...].

    Raises:
      UserError: a path is of no field of the batch, or of one without a T.
    """
    for path, allowed in self._lengths.items():
      batch = self._padded(batch, path, allowed)
    return batch

  def _padded(self, batch: NestedMap, path: str, allowed: tuple[int, ...]):
    old = _at(batch, path)
    if old is None:
      known = [key for key, _ in batch.flatten_items()]
      raise errors.UserError(
        f'{self._name}: pad_to_lengths has {path!r}, and batches have'
        f' {", ".join(known)}' + errors.did_you_mean(path, known)
      )
    shape = self._length_shape(path, old)
    index = bisect.bisect_left(allowed, shape[1])
    if index == len(allowed):
      self._log_too_long(path, shape[1], allowed)
      return batch
    if allowed[index] == shape[1]:
      return batch
    return _with(batch, path, _extended(old, path, shape, allowed[index]))

  def _length_shape(self, path: str, field: Any) -> tuple[int, int]:
    """Returns the [B, T] of a field, or of a map with `paddings`."""
    is_map = isinstance(field, dict)
    leaf = field.get('paddings') if is_map else field
    if getattr(leaf, 'ndim', 0) < 2:
      found = 'a map without paddings [B, T]' if is_map else 'without an axis T'
      raise errors.UserError(
        f'{self._name}: pad_to_lengths has {path!r}, which is {found}; expected'
        ' fields [B, T, ...], or maps of them with paddings'
      )
    return leaf.shape[:2]

  def _log_too_long(self, path: str, length: int, allowed: tuple[int, ...]):
    if path not in self._too_long:
      self._too_long.add(path)
      logging.warning(
        '%s: %r has the length %d in a batch, and the longest of pad_to_lengths'
        ' is %d: such batches stay as they are',
        self._name,
        path,
        length,
        allowed[-1],
      )


def _checked(name: str, path: str, lengths: Any) -> tuple[int, ...]:
  values = lengths if isinstance(lengths, (list, tuple)) else [lengths]
  if not values or not all(type(n) is int and n > 0 for n in values):
    raise errors.UserError(
      f'{name}: pad_to_lengths of {path!r} is {lengths!r}; expected lengths,'
      ' such as (64, 128)'
    )
  return tuple(sorted(set(values)))


def _at(batch: Any, path: str) -> Any:
  """Returns the field or map of a dotted path; None if there is none."""
  for key in path.split('.') if path else ():
    batch = batch.get(key) if isinstance(batch, dict) else None
  return batch


def _with(batch: NestedMap, path: str, value: Any) -> NestedMap:
  """Returns a copy of a batch with another value at a path."""
  if not path:
    return value
  key, _, rest = path.partition('.')
  return NestedMap({**batch, key: _with(batch[key], rest, value)})


def _extended(field: Any, path: str, shape: tuple[int, int], length: int):
  """Returns a field, or the fields [B, T, ...] of a map, with a longer T."""

  def longer(keys, x):
    if x.shape[:2] != shape:
      return x
    name = keys or (jax.tree_util.DictKey(path.rpartition('.')[2]),)
    value = example_rows.padding_value(name)
    return host_fields.extended(x, length - shape[1], axis=1, value=value)

  return jax.tree_util.tree_map_with_path(longer, field)
