"""A dict with attribute access: the structure that batches and outputs use."""

from collections.abc import Mapping
from typing import Any

import jax
from fiddle import daglish

from pax_compat import errors


class UnknownKeyError(errors.UserError, AttributeError):
  """A `NestedMap` has no such key.

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
# So that traversals of a config find configs inside a map, too.
daglish.register_node_traverser(
  NestedMap,
  flatten_fn=lambda m: (tuple(m.values()), tuple(m)),
  unflatten_fn=lambda values, keys: NestedMap(zip(keys, values, strict=True)),
  path_elements_fn=lambda m: tuple(daglish.Key(key) for key in m),
)
