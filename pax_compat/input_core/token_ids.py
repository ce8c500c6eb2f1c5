"""Checks of token ids in batches against the vocabulary size of the model.

An embedding lookup takes another row for an id out of range, without an error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fiddle as fdl
import flax.linen as nn
import numpy as np
from fiddle import daglish

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# Leaves of this name, at any depth of a batch, are token ids.
_IDS = 'ids'

# Fields of layers with the number of tokens.
_SIZES = ('num_classes', 'vocab_size')


def leaves(batch: Any, path: tuple = ()) -> Iterator[tuple[tuple, np.ndarray]]:
  """Yields the integer leaves called `ids`, with their keys.

  Args:
    batch: nested dicts and sequences of arrays.
    path: keys of `batch` in an enclosing batch.
  """
  # Not by jax.tree_util, which takes several times as long for each batch.
  items = batch.items() if isinstance(batch, dict) else enumerate(batch)
  for key, child in items:
    if isinstance(child, (dict, list, tuple)):
      yield from leaves(child, (*path, key))
    elif key == _IDS and getattr(child, 'size', 0) and child.dtype.kind in 'iu':
      yield (*path, key), child


def check(name: str, batch: NestedMap, limit: int | None, expected: str):
  """Checks that no id of a batch is negative or too large.

  Args:
    name: the name of the input in messages.
    batch: NumPy leaves [B, ...].
    limit: number of ids, from 0 on; None if it is not known.
    expected: the end of the message about an id that is too large.

  Raises:
    UserError: an id is negative, or `limit` or more.
  """
  for path, leaf in leaves(batch):
    if leaf.min() < 0:
      # A lookup would count it from the end of the table.
      _refuse(name, path, leaf, leaf < 0, 'expected none below 0')
    if limit is not None and leaf.max() >= limit:
      _refuse(name, path, leaf, leaf >= limit, expected)


def check_known(name: str, batch: NestedMap, limit: int):
  """Checks that all ids of a batch are in the vocabulary of the model.

  Args:
    name: the name of the input in messages.
    batch: NumPy leaves [B, ...].
    limit: vocabulary size of the model.

  Raises:
    UserError: an id is `limit` or more, or negative.
  """
  expected = (
    f'expected ids below {limit}, the rows of the largest table of the'
    ' model: the input and the model have different vocabularies'
  )
  check(name, batch, limit, expected)


def _refuse(
  name: str, path: tuple, leaf: np.ndarray, is_wrong: np.ndarray, expected: str
):
  """Raises a UserError that names the first wrong id of a leaf.

  Args:
    name: the name of the input in messages.
    path: the keys of the leaf.
    leaf: [B, ...], int.
    is_wrong: bool, in the shape of the leaf.
    expected: what was expected.
  """
  first = tuple(map(int, np.argwhere(is_wrong)[0]))
  more = int(is_wrong.sum()) - 1
  raise errors.UserError(
    f'{name}: in example {first[0]} of a batch, {".".join(map(str, path))} has'
    f' the id {leaf[first]} at {list(first)} of {list(leaf.shape)}, and {more}'
    f' more of the kind; {expected}'
  )


def known_to(model: config_lib.Config) -> int | None:
  """Returns the vocabulary size of a model: the rows of its largest table.

  Args:
    model: config of a model.

  Returns:
    The size; None if it is not certain, as the model has a layer from outside
    of this package, or no embedding layer.
  """
  layers = (
    (fdl.get_callable(node), config_lib.field_values(node))
    for node, _ in daglish.iterate(model)
    if _is_layer(node)
  )
  return rows_of_largest_table(layers, is_known=_is_own, lookup='emb_lookup')


def rows_of_largest_table(
  layers: Iterable[tuple[type, Mapping[str, Any]]],
  *,
  is_known: Callable[[type], bool],
  lookup: str,
) -> int | None:
  """Returns the number of rows of the largest embedding table of a model.

  Args:
    layers: class and fields of each layer of the model.
    is_known: whether the behaviour of a layer class is known.
    lookup: name of the lookup method of embedding layers.

  Returns:
    The number; None if a layer is not known, or no layer does lookups.
  """
  sizes, looks_up = [], False
  for cls, fields in layers:
    if not is_known(cls):
      return None
    looks_up = looks_up or hasattr(cls, lookup)
    sizes += [fields[n] for n in _SIZES if isinstance(fields.get(n), int)]
  return max(sizes, default=None) if looks_up else None


def _is_layer(config: Any) -> bool:
  if not isinstance(config, fdl.Buildable):
    return False
  cls = fdl.get_callable(config)
  return isinstance(cls, type) and issubclass(cls, nn.Module)


def _is_own(cls: type) -> bool:
  """Whether a layer is of this package, and does not wrap a foreign layer."""
  module = cls.__module__
  return module.startswith('pax_compat.') and not module.endswith('_adapter')
