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
