"""Names of weights, and regular expressions that select them.

A weight's path is its keys in the collection `params`, joined by slashes:
`lm/softmax/w`. Its name is the collection and the path: `params/lm/softmax/w`.
Users' expressions match names.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from flax import traverse_util

from pax_compat import base_layer, errors


def path_name(path) -> str:
  """Returns a tree path as a string: keys joined by slashes."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def by_path(tree: Any, is_leaf=None) -> dict[str, Any]:
  """Returns the leaves of a tree by path; see `path_name`."""
  items, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
  return {path_name(path): leaf for path, leaf in items}


def as_tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
  """Returns nested dicts from leaves by path; reverses `by_path`."""
  return traverse_util.unflatten_dict(dict(leaves), sep='/')


def pick(values: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
  """Returns the values at some paths, in their own order."""
  return {path: value for path, value in values.items() if path in paths}


def replace_leaves(tree: Any, leaves: Mapping[str, Any]) -> Any:
  """Returns a tree with the leaves at some paths replaced."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaves.get(path_name(path), leaf), tree
  )


def full_name(path: str, collection: str = base_layer.PARAMS) -> str:
  """Returns the name of the variable at a path of a collection."""
  return f'{collection}/{path}'


def compiled(patterns: str | Sequence[str], field: str) -> list[re.Pattern]:
  """Returns compiled regular expressions.

  Args:
    patterns: one or several.
    field: the field's name, for error messages.

  Raises:
    UserError: one is not a regular expression.
  """
  patterns = [patterns] if isinstance(patterns, str) else patterns
  return [errors.compiled(pattern, field) for pattern in patterns]


def check_matched(
  pattern: re.Pattern, matched: bool, names: Collection[str], field: str
):
  """Raises a UserError that suggests names, if a pattern matched no weight."""
  if not matched:
    raise errors.UserError(
      f'{field}: {pattern.pattern!r} matches the name of no weight'
      + errors.did_you_mean(pattern.pattern, names)
    )


def check_matches(
  patterns: Sequence[re.Pattern], names: Collection[str], field: str
):
  """Raises a UserError where a pattern matches the whole name of no weight.

  Args:
    patterns: compiled.
    names: names of all weights.
    field: the field's name, for error messages.
  """
  for pattern in patterns:
    found = any(map(pattern.fullmatch, names))
    check_matched(pattern, found, names, field)
