"""Summaries of layers: scalars, histograms, images and text."""

import enum
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
  """Sets whether summaries of layers have Pax's keys, as `loss_scalar`.

  For code that was written for Pax and reads the collection `summaries`. Event
  files have the names without the type, as in Pax.
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
  verbosity: int = flax.struct.field(pytree_node=False, default=2)

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
