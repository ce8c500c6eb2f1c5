"""Checks of each batch of an input, before it is sent to the devices.

Legend: B rows of a batch of this process.
"""

from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap

# What an array of objects may contain: such fields stay on the host.
_OBJECTS = (str, bytes, bool, int, float, np.ndarray, np.generic, type(None))

# Types of elements that may differ in their number of bits only. The kind of
# bfloat16 is V.
_KINDS = {
  'i': 'integers',
  'u': 'integers',
  'f': 'floats',
  'V': 'floats',
  'S': 'strings',
  'U': 'strings',
  'O': 'strings',
}

# What integers of 64 bits are on devices.
_NARROW = {'int64': 'int32', 'uint64': 'uint32'}


class BatchCheck:
  """Checks that batches are arrays, and as the first one of the input.

  Numbers of rows and lengths may differ between batches; the fields, their
  types and their numbers of dimensions may not.
  """

  def __init__(self, data: base_input.BaseInput):
    """Starts before the first batch.

    Args:
      data: the input.
    """
    # The batches of a mixture of several tasks have different fields.
    self._alike = type(data).example_batch is base_input.BaseInput.example_batch
    self._first: dict[str, tuple[str, int]] | None = None
    self._has_equal_rows = True
    self._data = data
    # Fields that a warning was about; kept for later checks of the input.
    self._large: set[str] = vars(data).setdefault('_fields_too_large', set())

  def __call__(self, batch: NestedMap):
    """Checks the next batch.

    Raises:
      UserError: it has no fields or no rows, a field is not an array, or it
        differs from the first batch.
    """
    fields = _arrays(batch)
    if not fields:
      raise errors.UserError('the batch is empty: it has no fields')
    for name, array in fields.items():
      if array.shape[:1] == (0,):
        raise errors.UserError(
          f'the field {name!r} of shape {list(array.shape)} has no rows;'
          ' expected at least one'
        )
      self._warn_of_large(name, array)
    rows = {name: x.shape[0] for name, x in fields.items() if x.ndim}
    equal = len(set(rows.values())) <= 1
    if self._first is None:
      self._has_equal_rows = equal
      self._first = {name: _kind(x) for name, x in fields.items()}
      return
    if self._has_equal_rows and not equal:
      described = ', '.join(f'{name} {count}' for name, count in rows.items())
      raise errors.UserError(
        f'the fields have different numbers of rows: {described}; expected one'
        ' number, as in the first batch'
      )
    if self._alike:
      _compare({name: _kind(x) for name, x in fields.items()}, self._first)

  def _warn_of_large(self, name: str, array: Any):
    """Logs a warning, once, about numbers that 32 bits cannot hold."""
    narrow = _NARROW.get(str(array.dtype))
    if (
      narrow is None
      or not array.size
      or name in self._large
      or jax.config.jax_enable_x64
      or self._data.is_host_field(name, array)
    ):
      return
    limits, low, high = np.iinfo(narrow), array.min(), array.max()
    if low < limits.min or high > limits.max:
      self._large.add(name)
      logging.warning(
        'the field %r of the dataset %r has numbers from %d to %d, which are'
        ' other numbers in the %s of the devices: expected numbers of at most'
        ' %d, or strings, which stay on the host',
        name,
        self._data.name,
        low,
        high,
        narrow,
        limits.max,
      )


def _arrays(batch: NestedMap) -> dict[str, Any]:
  """Returns the arrays by path.

  Raises:
    UserError: a field is anything else.
  """
  found = {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    if not hasattr(leaf, 'shape') or not hasattr(leaf, 'dtype'):
      kind = type(leaf).__name__
      if isinstance(path[-1], jax.tree_util.SequenceKey):
        name, kind = name.rpartition('.')[0], f'list of {kind}'
      raise errors.UserError(
        f'the field {name!r} is a {kind}; expected a NumPy array [B, ...]'
      )
    if leaf.dtype.kind == 'O' and leaf.size:
      item = leaf.flat[0]
      if not isinstance(item, _OBJECTS):
        raise errors.UserError(
          f'the field {name!r} is an array of objects, {type(item).__name__};'
          ' expected numbers, in rows of one length, or strings'
        )
    found[name] = leaf
  return found


def _kind(array: Any) -> tuple[str, int]:
  """Returns what must be the same in all batches."""
  return _KINDS.get(array.dtype.kind, str(array.dtype)), array.ndim


def _compare(
  found: dict[str, tuple[str, int]], first: dict[str, tuple[str, int]]
):
  for name in first.keys() | found.keys():
    if name not in found or name not in first:
      text = 'lacks the field' if name in first else 'has a new field'
      raise errors.UserError(
        f'the batch {text} {name!r}; expected the fields of the first batch:'
        f' {", ".join(first)}'
      )
    if found[name] != first[name]:
      (kind, rank), (old, old_rank) = found[name], first[name]
      raise errors.UserError(
        f'the field {name!r} has {rank} dimension(s) of {kind}; expected'
        f' {old_rank} of {old}, as in the first batch'
      )
