"""Host fields: the fields of a batch that stay on the host, such as strings.

Shapes: B batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flax import serialization

from pax_compat import errors
from pax_compat.nested_map import NestedMap

# The field of decoded outputs that has them, for `process_decode_out`.
NAME = 'host_fields'


def split(
  batch: NestedMap, is_host_field: Callable[[str, np.ndarray], bool]
) -> tuple[NestedMap, dict[str, np.ndarray]]:
  """Splits a batch into device fields and host fields.

  Args:
    batch: arrays [B, ...]; not changed.
    is_host_field: see `BaseInput.is_host_field`.

  Returns:
    The batch without host fields, and the host fields by dotted path.
  """
  found: dict[str, np.ndarray] = {}
  rest = _without(batch, '', is_host_field, found)
  return (rest if found else batch), found


def for_devices(
  batch: NestedMap, is_host_field: Callable[[str, np.ndarray], bool]
) -> NestedMap:
  """Returns the batch without its host fields."""
  return split(batch, is_host_field)[0]


def _without(node: Any, path: str, is_host_field, found) -> Any:
  """Returns a node without its host fields; None if nothing is left."""
  if isinstance(node, dict):
    items = list(node.items())
  elif type(node) in (list, tuple):
    items = list(enumerate(node))
  else:
    if hasattr(node, 'dtype') and is_host_field(path, node):
      found[path] = node
      return None
    return node
  kept = []
  for key, child in items:
    inner = f'{path}.{key}' if path else str(key)
    rest = _without(child, inner, is_host_field, found)
    if rest is not None or child is None:
      kept.append((key, rest))
  if items and not kept:
    return None if path else NestedMap()
  if isinstance(node, dict):
    return type(node)(kept)
  return type(node)(rest for _, rest in kept)


def extended(
  x: np.ndarray, count: int, *, axis: int = 0, value: Any = 0
) -> np.ndarray:
  """Returns an array padded at the end of an axis.

  Args:
    x: numbers, strings or other objects.
    count: number of positions to add.
    axis: the axis to pad.
    value: padding value of a numeric array; see `blank`.
  """
  shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
  return np.concatenate([x, blank(x, shape, value)], axis)


def blank(like: np.ndarray, shape: Sequence[int], value: Any = 0) -> np.ndarray:
  """Returns an array of padding values, with the dtype of another array.

  Args:
    like: numbers, strings or other objects.
    shape: shape of the returned array.
    value: padding value of numbers. Strings are empty, other objects None.
  """
  if like.dtype.kind in 'SU':
    value = like.dtype.type()
  elif like.dtype.kind == 'O':
    some = like.flat[0] if like.size else None
    value = type(some)() if isinstance(some, bytes | str) else None
  return np.full(shape, value, like.dtype)


def canonical_bytes(x: np.ndarray) -> bytes:
  """Returns bytes that are equal for arrays with equal values, for hashing."""
  if x.dtype.kind == 'O':
    return to_bytes({'': x})
  return np.ascontiguousarray(x).tobytes()


def to_bytes(fields: Mapping[str, np.ndarray]) -> bytes:
  """Serializes arrays of numbers, strings and bytes; see `from_bytes`.

  Raises:
    UserError: an array contains another type.
  """
  return serialization.msgpack_serialize(
    {name: _packed(name, x) for name, x in fields.items()}
  )


def from_bytes(data: bytes) -> dict[str, np.ndarray]:
  """Deserializes arrays of `to_bytes`; strings become Python objects."""
  found = serialization.msgpack_restore(data)
  return {name: _unpacked(x) for name, x in found.items()}


def _packed(name: str, x: np.ndarray) -> Any:
  if x.dtype.kind not in 'OSU':
    return np.asarray(x)
  items = [_item(name, item) for item in x.ravel().tolist()]
  return {'shape': list(x.shape), 'items': items}


def _item(name: str, item: Any) -> Any:
  for kind in (bytes, str):
    if isinstance(item, kind):
      return kind(item)  # Also of NumPy's subclasses of them.
  known = (bool, int, float, np.ndarray, np.generic)
  if item is None or isinstance(item, known):
    return item
  raise errors.UserError(
    f'the field {name!r} of a batch stays on the host and contains'
    f' a {type(item).__name__}; expected strings, bytes, numbers or arrays of'
    ' numbers'
  )


def _unpacked(packed: Any) -> np.ndarray:
  if not isinstance(packed, dict):
    return packed
  items = np.empty(len(packed['items']), object)
  for number, item in enumerate(packed['items']):
    items[number] = item
  return items.reshape(packed['shape'])
