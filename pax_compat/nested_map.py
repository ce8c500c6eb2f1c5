"""A dict with attribute access: the structure that batches and outputs use."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from fiddle import daglish
from flax import serialization

from pax_compat import errors
from pax_compat.config_core import nested_paths


class UnknownKeyError(errors.UserError, AttributeError):
  """The key is not in the `NestedMap`.

  For example, a model reads a field that the input's batches do not have.
  """


class NestedMap(dict):
  """A `dict` whose string keys are also attributes; a JAX pytree.

  Leaves are visited in the order of the sorted keys, so two maps with the same
  keys always have the same tree structure.
  """

  @classmethod
  def from_nested(cls, fields: Mapping[str, Any]) -> 'NestedMap':
    """Returns nested mappings as maps of this class."""
    return cls(
      {
        key: cls.from_nested(value) if isinstance(value, Mapping) else value
        for key, value in fields.items()
      }
    )

  def __getattr__(self, key):
    try:
      return self[key]
    except KeyError:
      raise UnknownKeyError(
        f'no field {key!r} in a NestedMap (such as a batch) with the fields'
        f' {", ".join(sorted(self))}'
      ) from None

  def __setattr__(self, key, value):
    self[key] = value

  def __delattr__(self, key):
    try:
      del self[key]
    except KeyError:
      raise AttributeError(key) from None

  def copy(self) -> 'NestedMap':
    """Returns a shallow copy."""
    return NestedMap(self)

  def flatten_items(self) -> list[tuple[str, object]]:
    """Returns (dotted path, leaf) pairs, in tree order."""
    paths, _ = jax.tree_util.tree_flatten_with_path(self)
    return [
      (jax.tree_util.keystr(path, simple=True, separator='.'), leaf)
      for path, leaf in paths
    ]

  def transform(self, fn) -> 'NestedMap':
    """Returns a map of the same structure with `fn` applied to each leaf."""
    return jax.tree.map(fn, self)

  # The methods below have the names and the meaning of Pax's. Their paths are
  # `a.b[0].c`; only mappings and lists have elements, a tuple is a leaf.

  @staticmethod
  def FromNestedDict(x: Any) -> Any:
    """Returns a nest with each mapping in it as a NestedMap."""
    if isinstance(x, Mapping):
      return NestedMap(
        {key: NestedMap.FromNestedDict(value) for key, value in x.items()}
      )
    if isinstance(x, list | tuple):
      values = [NestedMap.FromNestedDict(value) for value in x]
      return type(x)(*values) if hasattr(x, '_fields') else type(x)(values)
    return x

  @staticmethod
  def FromNestedDataclass(x: Any) -> 'NestedMap':
    """Returns a dataclass, and those in its fields, as maps.

    Raises:
      UserError: `x` is not a dataclass.
    """
    if not dataclasses.is_dataclass(x) or isinstance(x, type):
      raise errors.UserError(
        f'NestedMap.FromNestedDataclass: expected a dataclass, got {x!r}'
      )
    return NestedMap.FromNestedDict(dataclasses.asdict(x))

  def ToNestedDict(self) -> dict[str, Any]:
    """Returns the map, and those in it, as dicts."""
    return nested_paths.as_dicts(self)

  @staticmethod
  def CheckKey(key: Any):
    """Raises a UserError unless `key` is a valid attribute name."""
    if not (isinstance(key, str) and key.isidentifier()):
      raise errors.UserError(
        f'{key!r} is not a valid NestedMap key; expected a name'
      )

  @staticmethod
  def SquareBracketIndex(key: str) -> tuple[str, int | None]:
    """Returns ('a', 3) for `a[3]`, ('a', None) for `a`."""
    return nested_paths.indexed(key)

  def GetItem(self, key: str) -> Any:
    """Returns the value of a path; raises a KeyError or an IndexError."""
    return nested_paths.get(self, key)

  def Get(self, key: str, default: Any = None) -> Any:
    """Returns the value of a path, or `default`."""
    try:
      return self.GetItem(key)
    except (KeyError, IndexError, TypeError):
      return default

  def GetSlice(self, keys: Iterable[str]) -> 'NestedMap':
    """Returns a map of these paths only."""
    found = NestedMap()
    for key in keys:
      found.Set(key, self.GetItem(key))
    return found

  def Has(self, key: str) -> bool:
    """Whether there is such a path."""
    missing = object()
    return self.Get(key, missing) is not missing

  def Set(self, key: str, value: Any):
    """Sets the value of a path; makes the maps and lists on the way.

    Raises:
      UserError: an index is more than one beyond a list, or something on the
        way is not a map.
    """
    nested_paths.put(self, key, value, NestedMap)

  def Update(self, other: 'NestedMap') -> 'NestedMap':
    """Sets each path of `other`, and returns this map."""
    for key, value in other.FlattenItems():
      self.Set(key, value)
    return self

  def Union(self, other: 'NestedMap') -> 'NestedMap':
    """Returns a map of the paths of both; those of `other` override."""
    return NestedMap().Update(self).Update(other)

  def DeepCopy(self) -> 'NestedMap':
    """Returns a copy of all maps and lists; the leaves are not copied."""
    return self.Transform(lambda leaf: leaf)

  def Keys(self) -> list[str]:
    """Returns the paths of the leaves."""
    return [key for key, _ in self.FlattenItems()]

  def Flatten(self) -> list[Any]:
    """Returns the leaves in the order of the sorted keys."""
    return [value for _, value in self.FlattenItems()]

  def FlattenItems(self) -> list[tuple[str, Any]]:
    """Returns (path, leaf) pairs in the order of the sorted keys."""
    return list(nested_paths.leaves(self))

  def Pack(self, lst: Sequence[Any]) -> 'NestedMap':
    """Returns a map of this structure with the leaves of `lst`.

    Raises:
      UserError: the number of leaves differs.
    """
    keys = self.Keys()
    if len(keys) != len(lst):
      raise errors.UserError(
        f'NestedMap.Pack: {len(lst)} values for the {len(keys)} leaves'
        f' {", ".join(keys)}'
      )
    values = iter(lst)
    return self.Transform(lambda _: next(values))

  def Transform(self, fn: Callable[[Any], Any]) -> 'NestedMap':
    """Returns a map of this structure with `fn(leaf)` as leaves."""
    return self.TransformWithKey(lambda _, value: fn(value))

  def TransformWithKey(self, fn: Callable[[str, Any], Any]) -> 'NestedMap':
    """Returns a map of this structure with `fn(path, leaf)` as leaves."""
    return nested_paths.transformed(self, fn)

  def Filter(self, fn: Callable[[Any], bool]) -> 'NestedMap':
    """Returns a map of the leaves for which `fn(leaf)` is true."""
    return self.FilterKeyVal(lambda _, value: fn(value))

  def FilterKeyVal(self, fn: Callable[[str, Any], bool]) -> 'NestedMap':
    """Returns a map of the leaves for which `fn(path, leaf)` is true.

    Maps and lists that lose all their leaves are left out.
    """
    return nested_paths.filtered(self, fn)

  def IsCompatible(self, other: 'NestedMap') -> bool:
    """Whether both have the same paths."""
    return self.Keys() == other.Keys()

  def DebugString(self) -> str:
    """Returns a line of path and value for each leaf."""
    items = self.FlattenItems()
    width = max((len(key) for key, _ in items), default=0) + 4
    return '\n'.join(sorted(f'{key:{width}}{value}' for key, value in items))

  def VLog(self, level: int | None = None, prefix: str | None = None):
    """Logs the lines of `DebugString` at absl's verbosity `level`."""
    prefix = 'nmap: ' if prefix is None else prefix
    for line in self.DebugString().splitlines():
      logging.vlog(level or 0, '%s %s', prefix, line)


def _flatten(m: NestedMap):
  keys = tuple(sorted(m))
  return [m[k] for k in keys], keys


def _flatten_with_keys(m: NestedMap):
  keys = tuple(sorted(m))
  return [(jax.tree_util.DictKey(k), m[k]) for k in keys], keys


jax.tree_util.register_pytree_with_keys(
  NestedMap,
  _flatten_with_keys,
  lambda keys, values: NestedMap(zip(keys, values, strict=True)),
  _flatten,
)
# So that flax saves and restores the values inside, too.
serialization.register_serialization_state(
  NestedMap,
  lambda m: serialization.to_state_dict(dict(m)),
  lambda m, state: NestedMap(serialization.from_state_dict(dict(m), state)),
)
# So that traversals of a config find configs inside a map, too.
daglish.register_node_traverser(
  NestedMap,
  flatten_fn=lambda m: (tuple(m.values()), tuple(m)),
  unflatten_fn=lambda values, keys: NestedMap(zip(keys, values, strict=True)),
  path_elements_fn=lambda m: tuple(daglish.Key(key) for key in m),
)
