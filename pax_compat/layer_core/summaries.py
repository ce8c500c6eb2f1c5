"""Summaries of layers: scalars, histograms, images and text."""

import enum
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors


class SummaryType(enum.Enum):
  """Type of a summary.

  Every summary is of the global batch, so Pax's types that aggregate over
  devices are aliases. AUDIO and VIDEO are not supported.
  """

  SCALAR = 'scalar'
  HISTOGRAM = 'histogram'
  IMAGE = 'image'
  TEXT = 'text'
  AUDIO = 'audio'
  VIDEO = 'video'
  AGGREGATE_SCALAR = SCALAR
  AGGREGATE_IMAGE = IMAGE


# Whether the keys of summaries in this process end with their types.
_have_types = False


def use_pax_keys(always: bool = True):
  """Sets whether summaries of layers have Pax's form: arrays by `loss_scalar`.

  For code that was written for Pax and reads the collection `summaries`. The
  type is in the key; those of another verbosity than the default are still a
  `Summary`. Event files have the names without the type, as in Pax.
  """
  global _have_types
  _have_types = always


def have_pax_keys() -> bool:
  """Whether summaries of layers have Pax's keys."""
  return _have_types


def key_of(name: str, summary_type: SummaryType) -> str:
  """Returns the key of a summary in its collection."""
  return f'{name}_{summary_type.value}' if _have_types else name


def key_of_layer(
  key: str, summary_type: SummaryType, index: int, place: str
) -> str:
  """Returns the key of one layer's summary.

  Args:
    key: of the summary of all layers.
    summary_type: its type.
    index: of the layer.
    place: where the layer is, which Pax's keys end with: `one.stage0_scalar`.
  """
  if not _have_types:
    return f'{key}_{index}'
  return key_of(f'{name_of(key, summary_type)}.{place}', summary_type)


def name_of(key: str, summary_type: SummaryType) -> str:
  """Returns the name of a summary whose key is `key`."""
  return key.removesuffix(f'_{summary_type.value}') if _have_types else key


# The default verbosity.
VERBOSITY = 2
_REFUSED = (SummaryType.AUDIO, SummaryType.VIDEO)


class Summary(flax.struct.PyTreeNode):
  """A summary, as a compiled step outputs it.

  Attributes:
    value: see `BaseLayer.add_summary`. Repeated layers stack their values along
      a new first dimension.
    summary_type: type of the summary.
    verbosity: written if the task's `summary_verbosity` is at least this.
  """

  value: jax.Array
  summary_type: SummaryType = flax.struct.field(pytree_node=False)
  verbosity: int = flax.struct.field(pytree_node=False, default=VERBOSITY)

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    return np.array(self.value, dtype=dtype, copy=copy)


def summary_of(
  tensor: Any, summary_type: SummaryType, verbosity: int
) -> Summary:
  """Returns a summary of a value, or of what a function returns."""
  value = tensor() if callable(tensor) else tensor
  return Summary(as_value(value, summary_type), summary_type, verbosity)


def is_summary(x: Any) -> bool:
  """Whether `x` is a summary; for `is_leaf` of tree functions."""
  return isinstance(x, Summary)


def stored(tree: Any) -> Any:
  """Returns summaries as their collection has them; see `use_pax_keys`.

  Args:
    tree: a summary, or a tree of them.
  """

  def one(x):
    plain = _have_types and is_summary(x) and x.verbosity == VERBOSITY
    return x.value if plain else x

  return jax.tree.map(one, tree, is_leaf=is_summary)


def typed(tree: Any) -> Any:
  """Returns the collection with a `Summary` for each array; see `stored`.

  Args:
    tree: the collection, or a part of it. A list has the summaries of repeats,
      [1, ...], which get their number as suffix of their names.

  Raises:
    UserError: the key of an array does not end with its type.
  """
  if not _have_types or not isinstance(tree, Mapping):
    return tree
  found = {}
  for key, x in tree.items():
    if isinstance(x, Mapping):
      found[key] = typed(x)
    elif isinstance(x, list):
      kind = _type_of(key)
      for i, one in enumerate(x):
        is_scalar = kind is SummaryType.SCALAR
        value = jnp.squeeze(one) if is_scalar else one[0]
        name = f'{name_of(key, kind)}_{i}'
        found[key_of(name, kind)] = Summary(value, kind)
    else:
      found[key] = x if is_summary(x) else Summary(x, _type_of(key))
  return found


def _type_of(key: str) -> SummaryType:
  for kind in SummaryType:
    if key.endswith(f'_{kind.value}'):
      return kind
  raise errors.UserError(f'the summary {key!r} does not end with its type')


def as_value(value: Any, summary_type: SummaryType) -> jax.Array:
  """Returns a summary's value as an array; text as UTF-8 bytes.

  Raises:
    UserError: the type is not supported.
  """
  if summary_type in _REFUSED:
    known = [t.name for t in SummaryType if t not in _REFUSED]
    raise errors.UserError(
      f'SummaryType.{summary_type.name} is not supported; expected one of'
      f' {", ".join(known)}'
    )
  if summary_type is SummaryType.TEXT and isinstance(value, str):
    value = np.frombuffer(value.encode(), np.uint8)
  return jnp.asarray(value)
