"""Trees: names of leaves, selection, merging."""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax

from pax_compat import errors
from pax_compat.nested_map import NestedMap

Patterns = str | re.Pattern | Iterable[re.Pattern | str]


class BpropMaskedNode(NamedTuple):
  """Stands for a variable that is not trained, in a tree of gradients."""


def is_bprop_masked_node(x: Any) -> bool:
  """Whether `x` is a `BpropMaskedNode`; for `is_leaf` of tree functions."""
  return isinstance(x, BpropMaskedNode)


def is_optax_masked_node(x: Any) -> bool:
  """Whether `x` is Optax's MaskedNode; for `is_leaf` of tree functions."""
  return isinstance(x, optax.MaskedNode)


def merge_dict(dict1: Mapping, dict2: Mapping) -> dict:
  """Returns both dicts as one.

  Raises:
    UserError: a key has two different objects.
  """
  for key in set(dict1) & set(dict2):
    if dict1[key] is not dict2[key]:
      raise errors.UserError(
        f'merge_dict: two values of the key {key!r}: {dict1[key]!r} and'
        f' {dict2[key]!r}; expected the same object'
      )
  return {**dict1, **dict2}


def assert_same_shape_and_dtype(tree: Any, other: Any):
  """Raises an AssertionError if leaves differ in their shape or dtype."""

  def check(x, y):
    assert (x.shape, x.dtype) == (y.shape, y.dtype), f'x={x}, y={y}'

  return jax.tree.map(check, tree, other)


def total_num_vars(variables: Any) -> int:
  """Returns the number of elements of all arrays (or shapes) in a tree."""
  return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(variables))


def extract_prefixed_keys_from_nested_map(
  node: Any,
  prefix: str = '',
  key_separator: str = '/',
  left_separator: str = '[',
  right_separator: str = ']',
  is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
  """Returns a tree in which each leaf is its path.

  >>> extract_prefixed_keys_from_nested_map({'a': [1, {'b': 2}]})
  {'a': ['a[0]', {'b': 'a[1]/b'}]}

  Args:
    node: dicts, lists, tuples, named tuples and Flax dataclasses.
    prefix: the path of `node`; of a lone leaf with '' it is None.
    key_separator: between two keys.
    left_separator: before an index.
    right_separator: after an index.
    is_leaf: nodes for which it is true become None.
  """

  def visit(value, path):
    return extract_prefixed_keys_from_nested_map(
      value, path, key_separator, left_separator, right_separator, is_leaf
    )

  def below(key):
    return f'{prefix}{key_separator}{key}' if prefix else key

  if is_leaf is not None and is_leaf(node):
    return None
  if isinstance(node, dict):
    return type(node)({k: visit(v, below(k)) for k, v in node.items()})
  if isinstance(node, jax.sharding.PartitionSpec):
    return prefix
  if isinstance(node, tuple) and hasattr(node, '_fields'):
    return type(node)(
      *(visit(getattr(node, f), below(f)) for f in node._fields)
    )
  if isinstance(node, list | tuple):
    return type(node)(
      visit(v, f'{prefix}{left_separator}{i}{right_separator}')
      for i, v in enumerate(node)
    )
  if dataclasses.is_dataclass(node) and not isinstance(node, type):
    if isinstance(flax.serialization.to_state_dict(node), dict):
      # Also the fields that are not in the tree, without which none is built.
      values = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}
      return type(node)(**{f: visit(v, below(f)) for f, v in values.items()})
  return prefix or None


def extract_keys(n, p, key_separator, left_separator, right_separator, is_leaf):
  """`extract_prefixed_keys_from_nested_map` with all arguments by position."""
  return extract_prefixed_keys_from_nested_map(
    n, p, key_separator, left_separator, right_separator, is_leaf
  )


def select_nodes_by_indices(indices: Any, *trees: Any) -> Any:
  """Returns a tree whose leaves come from the trees that `indices` names."""
  return jax.tree.map(lambda i, *leaves: leaves[i], indices, *trees)


def match_variable_names(
  tree: Any,
  patterns: Patterns,
  is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
  """Returns a tree of booleans: which paths, such as `lm/w`, match a pattern.

  Args:
    tree: any tree.
    patterns: one or more regular expressions, each of which matches a whole
      path, see `extract_prefixed_keys_from_nested_map`.
    is_leaf: as in `jax.tree.map`.
  """
  if isinstance(patterns, str | re.Pattern):
    patterns = [patterns]
  compiled = [re.compile(pattern) for pattern in patterns]

  def matches(path, leaf):
    del leaf
    name = path_text(path)
    return any(pattern.fullmatch(name) for pattern in compiled)

  return jax.tree_util.tree_map_with_path(matches, tree, is_leaf=is_leaf)


def path_text(path: Sequence[Any]) -> str:
  """Returns a path of JAX's keys as text, such as `a[1]/b`."""
  text = ''
  for key in path:
    if isinstance(key, jax.tree_util.SequenceKey):
      text += f'[{key.idx}]'
    else:
      name = jax.tree_util.keystr((key,), simple=True)
      text += f'/{name}' if text else name
  return text


def update_matched_variables(
  old_tree: Any, new_tree: Any, patterns: Patterns, invert: bool = False
) -> Any:
  """Returns `old_tree` with the leaves of matching paths from `new_tree`.

  Args:
    old_tree: any tree.
    new_tree: a tree of the same structure.
    patterns: see `match_variable_names`.
    invert: whether the leaves that do not match are taken instead.
  """
  mask = match_variable_names(old_tree, patterns)
  taken = jax.tree.map(lambda matched: matched != invert, mask)
  for path, take in jax.tree_util.tree_flatten_with_path(taken)[0]:
    logging.info('%s %s', 'takes the new' if take else 'keeps', path_text(path))
  return select_nodes_by_indices(jax.tree.map(int, taken), old_tree, new_tree)


def filter_by_matching_keys(
  batch: Mapping[str, Any], prefixes: Sequence[str]
) -> tuple[NestedMap, NestedMap]:
  """Returns the fields whose keys begin with a prefix, and the others."""
  matching, others = NestedMap(), NestedMap()
  for key, value in batch.items():
    (matching if key.startswith(tuple(prefixes)) else others)[key] = value
  return matching, others


def concat_nested_maps(map_list: Sequence[NestedMap], axis: int) -> NestedMap:
  """Concatenates the arrays of maps along an axis, recursively.

  A field that the second map lacks, that is neither an array nor a map, or that
  lacks the axis, is that of the first map.
  """
  first, *others = map_list
  if not others:
    return first
  result = NestedMap(first)
  for key, value in first.items():
    if key not in others[0]:
      continue
    fields = [m[key] for m in map_list]
    if isinstance(value, jax.Array) and value.ndim > axis:
      result[key] = jnp.concatenate(fields, axis=axis)
    elif isinstance(value, dict):
      result[key] = concat_nested_maps(fields, axis)
  return result
