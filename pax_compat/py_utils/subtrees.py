"""Paths of leaves, and trees within other trees: Pax's `praxis.trees`."""

import re
from collections.abc import Callable
from typing import Any

import jax

from pax_compat import errors
from pax_compat.py_utils.trees import Patterns, path_text


class NoSubsetError(errors.UserError, ValueError):
  """A tree is not a part of another one."""


def to_path_tree(
  tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
  """Returns a tree in which each leaf is its path.

  >>> to_path_tree({'a': [1, {'b': 2}]})
  {'a': ['a[0]', {'b': 'a[1]/b'}]}

  Args:
    tree: any tree.
    is_leaf: leaves for which it is true become None.
  """

  def path_of(path, leaf):
    return None if is_leaf and is_leaf(leaf) else path_text(path)

  return jax.tree_util.tree_map_with_path(path_of, tree)


def fullmatch_path(
  tree: Any,
  patterns: Patterns,
  is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
  """Returns a tree of booleans: which paths a pattern matches as a whole.

  Args:
    tree: any tree.
    patterns: one or more regular expressions; see `to_path_tree` for paths.
    is_leaf: leaves for which it is true become None.
  """
  if isinstance(patterns, str | re.Pattern):
    patterns = [patterns]
  compiled = list(map(re.compile, patterns))
  return jax.tree.map(
    lambda path: any(pattern.fullmatch(path) for pattern in compiled),
    to_path_tree(tree, is_leaf),
  )


def is_subset(subset: Any, superset: Any) -> bool:
  """Whether a tree is a part of another one, from its root.

  >>> is_subset({'a': [1, 2]}, {'a': [1, 2, 3], 'b': 4})
  True

  Args:
    subset: a tree; of a dict it may lack keys, of a list or a tuple the end.
    superset: the whole tree. Other nodes and leaves must be equal.
  """
  if isinstance(subset, dict) and isinstance(superset, dict):
    keys = subset.keys()
    return keys <= superset.keys() and all(
      is_subset(subset[key], superset[key]) for key in keys
    )
  if type(subset) is not type(superset):
    return False
  if type(subset) in (list, tuple):
    return len(subset) <= len(superset) and all(
      map(is_subset, subset, superset)
    )
  return subset == superset


def extract_elements_matching_subset_structure(
  subset: Any, superset: Any
) -> Any:
  """Returns what a tree has at the places of another one.

  >>> extract_elements_matching_subset_structure({'a': [0]}, {'a': [1, 2]})
  {'a': [1]}

  Args:
    subset: its structure counts, its leaves do not.
    superset: the tree; see `is_subset`.

  Raises:
    NoSubsetError: the tree lacks a place.
  """
  return _extracted(subset, superset, '')


def _extracted(subset: Any, superset: Any, where: str) -> Any:
  if isinstance(subset, dict) and isinstance(superset, dict):
    missing = [key for key in subset if key not in superset]
    if missing:
      raise NoSubsetError(
        f'{where}/{missing[0]} is in the subset only'
        + errors.did_you_mean(str(missing[0]), map(str, superset))
      )
    return type(subset)(
      {
        key: _extracted(value, superset[key], f'{where}/{key}')
        for key, value in subset.items()
      }
    )
  if type(subset) is not type(superset):
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(subset)):
      return superset
    raise NoSubsetError(
      f'{where or "/"}: the subset has a {type(subset).__name__}, the superset'
      f' a {type(superset).__name__}; expected the same'
    )
  if type(subset) in (list, tuple):
    if len(subset) > len(superset):
      raise NoSubsetError(
        f'{where or "/"}: the subset has {len(subset)} elements, the superset'
        f' {len(superset)}; expected no more'
      )
    pairs = zip(subset, superset, strict=False)
    return type(subset)(
      [_extracted(*pair, f'{where}[{i}]') for i, pair in enumerate(pairs)]
    )
  return superset


def get_shape_dtype(nested_obj: Any) -> Any:
  """Returns a tree of arrays as a tree of `jax.ShapeDtypeStruct`s."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nested_obj
  )


def copy(pytree: Any) -> Any:
  """Returns a copy of all nodes; the leaves are not copied."""
  return jax.tree.map(lambda leaf: leaf, pytree)
