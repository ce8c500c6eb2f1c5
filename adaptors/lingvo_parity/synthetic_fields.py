"""Values for the fields of a synthetic batch, by their names and types.

    paddings          0, then 1, except in the first row
    weights           1 - paddings
    segment_ids, _pos two segments in a row; then there are no paddings
    ids               random ids, 0 at paddings; `labels` are the next ones
    ..._lengths       like the lengths of rows with paddings
    ...label...       random classes
    ...mask           0 or 1
    ...bbox...        boxes whose sizes, items 3 to 5 of the last axis, are
                      positive
    ...locations      different cells of a grid
    ..._in_..._camera pixels near the corner of an image
    other floats      of a normal distribution, 0 at paddings
    other integers    0 or 1

Legend: B batch, T time.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from adaptors.lingvo_parity.input_specs import Spec
from pax_compat.nested_map import NestedMap

# Lower ids are special: padding, ends of sentences, unknown words.
FIRST_ID = 4
_MASKED = 0.2  # The fraction of zeros in a mask.
_CORNER = 8  # In pixels; images are at least as large.


def fill(specs: NestedMap, num_ids: int, seed: int) -> NestedMap:
  """Returns a batch.

  Args:
    specs: of its fields, nested.
    num_ids: ids and classes are below this.
    seed: of the random values.
  """
  lengths = [x.shape[1] for _, x in specs.flatten_items() if len(x.shape) > 1]
  rng = np.random.default_rng(seed)
  return _Filler(num_ids, max(lengths, default=1), rng).map(specs)


class _Filler:
  """Makes values, each map of a batch on its own."""

  def __init__(self, num_ids: int, length: int, rng: np.random.Generator):
    self._num_ids = num_ids
    self._length = length
    self._rng = rng

  def map(self, specs: NestedMap) -> NestedMap:
    """Returns the values of a map, and of those in it."""
    own = {k: spec for k, spec in specs.items() if isinstance(spec, Spec)}
    made = NestedMap(
      {k: self._below(v) for k, v in specs.items() if k not in own}
    )
    fields = _Fields(own, self._length)
    for key, spec in own.items():
      value = self._value(_name(key), spec, fields)
      made[key] = np.asarray(value, spec.dtype).reshape(spec.shape)
    for key, spec in own.items():
      ids = made.get(re.sub('labels$', 'ids', key))
      if key.endswith('labels') and key != 'ids' and ids is not None:
        if ids.shape == spec.shape and ids.ndim > 1:
          made[key] = np.roll(ids, -1, axis=1).astype(spec.dtype)
    return made

  def _below(self, node: Any) -> Any:
    if isinstance(node, dict):
      return self.map(node)
    if isinstance(node, list):
      return [self._below(item) for item in node]
    if isinstance(node, Spec):
      return self.map(NestedMap({node.path: node}))[node.path]
    return node

  def _value(self, name: str, spec: Spec, fields: '_Fields') -> Any:
    """Returns the value of a field, of any type."""
    shape = spec.shape
    rules: tuple[tuple[str, Callable[[], Any]], ...] = (
      ('padding', lambda: fields.paddings(shape)),
      ('weight', lambda: 1 - fields.paddings(shape)),
      ('segment_?pos|_position', lambda: _segments(shape)[1]),
      ('segment_?ids|_segmentation', lambda: _segments(shape)[0]),
      ('bucket_key|length|word_count', lambda: fields.ends(shape)),
      ('mask', lambda: self._rng.random(shape) >= _MASKED),
      ('label|class', lambda: self._rng.integers(0, self._num_ids, shape)),
      ('bbox', lambda: self._boxes(shape)),
      ('locations', lambda: _cells(shape)),
      ('_in_.*camera$', lambda: self._rng.uniform(0, _CORNER, shape)),
      ('ids?$', lambda: self._ids(spec, fields)),
    )
    for pattern, make in rules:
      if re.search(pattern, name):
        return make()
    if np.issubdtype(spec.dtype, np.integer) or spec.dtype == bool:
      return self._rng.integers(0, 2, shape)
    return self._rng.normal(size=shape) * fields.real(shape)

  def _ids(self, spec: Spec, fields: '_Fields') -> np.ndarray:
    if len(spec.shape) < 2:
      return np.arange(int(np.prod(spec.shape)))
    first = min(FIRST_ID, self._num_ids - 1)
    ids = self._rng.integers(first, self._num_ids, spec.shape)
    return ids * fields.real(spec.shape)

  def _boxes(self, shape: tuple[int, ...]) -> np.ndarray:
    boxes = self._rng.normal(size=shape)
    if shape and shape[-1] >= 6:
      boxes[..., 3:6] = 1 + np.abs(boxes[..., 3:6])
    return boxes


class _Fields:
  """The fields of one map of a batch."""

  def __init__(self, specs: dict[str, Spec], length: int):
    self._has_segments = any('segment' in _name(key) for key in specs)
    self._padded = {
      s.shape for key, s in specs.items() if 'padding' in _name(key)
    }
    # T of its sequences.
    self._length = max(
      (s.shape[1] for s in specs.values() if len(s.shape) > 1), default=length
    )

  def paddings(self, shape: tuple[int, ...]) -> np.ndarray:
    """Returns 1 where the last axis [B, ..., T] is padding."""
    if len(shape) < 2 or self._has_segments:
      return np.zeros(shape)
    ends = _ends(shape[0], shape[-1])
    ends = ends.reshape([shape[0]] + [1] * (len(shape) - 1))
    return np.broadcast_to(np.arange(shape[-1]) >= ends, shape).astype(float)

  def ends(self, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the lengths of rows [B]."""
    ends = _ends(shape[0] if shape else 1, self._length)
    ends = ends.reshape([-1] + [1] * max(0, len(shape) - 1))
    return np.broadcast_to(ends, shape) if shape else ends[0]

  def real(self, shape: tuple[int, ...]) -> np.ndarray:
    """Returns 0 for the paddings of a field [B, T, ...] of this shape."""
    for padded in sorted(self._padded, key=len, reverse=True):
      if shape[: len(padded)] == padded:
        real = 1 - self.paddings(padded)
        rest = [1] * (len(shape) - len(padded))
        return real.reshape([*padded, *rest]).astype(int)
    return np.ones([1] * len(shape), int)


def _name(key: str) -> str:
  """Returns the last part of a key, such as `text/bert/lengths`."""
  return re.split('[./]', key)[-1].lower()


def _ends(rows: int, length: int) -> np.ndarray:
  """Returns the lengths of rows: from `length` to its half."""
  return np.linspace(length, max(1, length / 2), rows).astype(int)


def _segments(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the ids of two segments in each row but the first, and positions.

  Args:
    shape: [B, T].
  """
  positions = np.broadcast_to(np.arange(shape[-1]), shape)
  ends = _ends(shape[0], shape[-1])
  ends = ends.reshape([shape[0]] + [1] * (len(shape) - 1))
  is_first = positions < ends
  return np.where(is_first, 1, 2), np.where(
    is_first, positions, positions - ends
  )


def _cells(shape: tuple[int, ...]) -> np.ndarray:
  """Returns different cells [..., P, 3] of a grid, as (x, y, 0)."""
  cells = np.zeros(shape, int)
  if len(shape) > 1:
    count = shape[-2]
    side = int(np.ceil(np.sqrt(count)))
    cells[..., 0], cells[..., 1] = np.divmod(np.arange(count), side)
  return cells
