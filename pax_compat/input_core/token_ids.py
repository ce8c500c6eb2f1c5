"""Ids of tokens in batches, and how many of them a model knows.

A lookup in a table takes an id that is too large for another one, in silence.
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

# The leaf of a batch that is looked up in a table, whatever it is part of.
_IDS = 'ids'

# Fields of layers that say how many tokens there are.
_SIZES = ('num_classes', 'vocab_size')


def leaves(batch: Any, path: tuple = ()) -> Iterator[tuple[tuple, np.ndarray]]:
  """Yields the leaves of whole numbers that are called `ids`, with their keys.

  Args:
    batch: nested dicts and sequences of arrays.
    path: of the batch, where it is part of another one.
  """
  # Not by jax.tree_util, which takes several times as long for each batch.
  items = batch.items() if isinstance(batch, dict) else enumerate(batch)
  for key, child in items:
    if isinstance(child, (dict, list, tuple)):
      yield from leaves(child, (*path, key))
    elif key == _IDS and getattr(child, 'size', 0) and child.dtype.kind in 'iu':
      yield (*path, key), child


def check(name: str, batch: NestedMap, limit: int | None, expected: str):
  """Checks that no id of a batch is negative, or too large.

  Args:
    name: how messages call the input.
    batch: leaves [B, ...] of numpy.
    limit: how many ids there are, from 0 on; None where that is not known.
    expected: what is said of one that is too large.

  Raises:
    UserError: an id is negative, or `limit` or more.
  """
  for path, leaf in leaves(batch):
    if leaf.min() < 0:
      # A table counts them from its end.
      _refuse(name, path, leaf, leaf < 0, 'expected none below 0')
    if limit is not None and leaf.max() >= limit:
      _refuse(name, path, leaf, leaf >= limit, expected)


def check_known(name: str, batch: NestedMap, limit: int):
  """Checks that a model knows all ids of a batch.

  Args:
    name: how messages call the input.
    batch: leaves [B, ...] of numpy.
    limit: how many ids the model knows, from 0 on.

  Raises:
    UserError: an id is `limit` or more, or negative.
  """
  expected = (
    f'expected ids below {limit}, as the largest table of the model has so'
    ' many rows: the input and the model have different vocabularies'
  )
  check(name, batch, limit, expected)


def _refuse(
  name: str, path: tuple, leaf: np.ndarray, is_wrong: np.ndarray, expected: str
):
  """Raises a UserError that names the first wrong id of a leaf.

  Args:
    name: how messages call the input.
    path: the keys of the leaf.
    leaf: [B, ...], int.
    is_wrong: of the shape of the leaf.
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
  """Returns how many ids a model knows: the rows of its largest table.

  Args:
    model: config of a model.

  Returns:
    The number; None where that is uncertain, as a layer is none of this
    package's own, or no layer looks anything up.
  """
  layers = (
    (fdl.get_callable(part), config_lib.field_values(part))
    for part, _ in daglish.iterate(model)
    if _is_layer(part)
  )
  return rows_of_largest_table(layers, is_known=_is_own, lookup='emb_lookup')


def rows_of_largest_table(
  layers: Iterable[tuple[type, Mapping[str, Any]]],
  *,
  is_known: Callable[[type], bool],
  lookup: str,
) -> int | None:
  """Returns how many rows the largest table has that a model looks ids up in.

  Args:
    layers: the class and the fields of each layer of the model.
    is_known: whether a layer of that class is known to do what it says.
    lookup: the method of a layer that looks ids up.

  Returns:
    The number; None where a layer is not known, or none looks anything up.
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
  """Whether a layer is of this package, and does not hold one of another."""
  module = cls.__module__
  return module.startswith('pax_compat.') and not module.endswith('_adapter')
