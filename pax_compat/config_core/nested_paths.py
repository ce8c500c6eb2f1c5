"""Paths such as `a.b[0].c` into nests of mappings and lists.

Everything but a mapping or a list is a leaf, a tuple too.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from pax_compat import errors

_INDEXED = re.compile(r'([^\W\d]\w*)\[(\d+)\]')
# What `filtered` gives for a nest that lost all its leaves.
_GONE = object()


def indexed(key: str) -> tuple[str, int | None]:
  """Returns ('a', 3) for `a[3]`, ('a', None) for `a`."""
  found = _INDEXED.fullmatch(key)
  return (found[1], int(found[2])) if found else (key, None)


def get(nest: Any, path: str) -> Any:
  """Returns the value of a path; raises a KeyError or an IndexError."""
  for key in path.split('.'):
    name, index = indexed(key)
    nest = nest[name] if index is None else nest[name][index]
  return nest


def put(nest: Any, path: str, value: Any, new: Callable[[], Any]):
  """Sets the value of a path; makes the mappings and lists on the way.

  Args:
    nest: a mapping.
    path: keys, each with an index or without.
    value: the value.
    new: returns an empty mapping.

  Raises:
    UserError: an index is more than one beyond a list, or something on the way
      is not a mapping.
  """
  *outer, last = path.split('.')
  for key in outer:
    nest, at = _slot(nest, key, path)
    if at == len(nest) if isinstance(nest, list) else at not in nest:
      _set(nest, at, new())
    nest = nest[at]
    if not isinstance(nest, dict):
      raise errors.UserError(
        f'{path!r} cannot be set: {key!r} is {type(nest).__name__}; expected a'
        ' map'
      )
  nest, at = _slot(nest, last, path)
  _set(nest, at, value)


def _slot(nest: Any, key: str, path: str) -> tuple[Any, Any]:
  """Returns the mapping or list that has a key, and its key or index."""
  name, index = indexed(key)
  if not name.isidentifier():
    raise errors.UserError(
      f'{path!r} is not a valid path: {key!r} is not a name'
    )
  if index is None:
    return nest, name
  values = nest.setdefault(name, [])
  if index > len(values):
    raise errors.UserError(
      f'{path!r} cannot be set: {name!r} has {len(values)} elements'
    )
  return values, index


def _set(nest: Any, at: Any, value: Any):
  if isinstance(nest, list) and at == len(nest):
    nest.append(value)
  else:
    nest[at] = value


def leaves(nest: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields (path, leaf) in the order of the sorted keys."""
  if isinstance(nest, dict):
    for key in sorted(nest):
      yield from leaves(nest[key], f'{path}.{key}' if path else key)
  elif isinstance(nest, list):
    for index, value in enumerate(nest):
      yield from leaves(value, f'{path}[{index}]')
  else:
    yield path, nest


def transformed(nest: Any, fn: Callable[[str, Any], Any], path: str = ''):
  """Returns a nest of the same types with `fn(path, leaf)` as leaves."""
  if isinstance(nest, dict):
    result = type(nest)()
    for key in sorted(nest):
      below = f'{path}.{key}' if path else key
      result[key] = transformed(nest[key], fn, below)
    return result
  if isinstance(nest, list):
    return [transformed(v, fn, f'{path}[{i}]') for i, v in enumerate(nest)]
  return fn(path, nest)


def filtered(nest: Any, keep: Callable[[str, Any], bool]) -> Any:
  """Returns a nest of the leaves for which `keep(path, leaf)` is true.

  Mappings and lists that lose all their leaves are left out.
  """
  marked = transformed(nest, lambda k, v: v if keep(k, v) else _GONE)
  result = _pruned(marked)
  return type(nest)() if result is _GONE else result


def _pruned(nest: Any) -> Any:
  if not isinstance(nest, dict | list):
    return nest
  if isinstance(nest, dict):
    kept = {key: _pruned(value) for key, value in nest.items()}
    result = type(nest)({k: v for k, v in kept.items() if v is not _GONE})
  else:
    result = [v for v in map(_pruned, nest) if v is not _GONE]
  return _GONE if nest and not result else result


def as_dicts(nest: Any) -> Any:
  """Returns a nest with plain dicts as mappings."""
  if isinstance(nest, dict):
    return {key: as_dicts(value) for key, value in nest.items()}
  return [as_dicts(v) for v in nest] if isinstance(nest, list) else nest
