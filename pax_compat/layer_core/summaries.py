"""What a layer tells its observers: scalars, histograms, images and texts."""

import enum
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors


class SummaryType(enum.Enum):
  """What a summary's value is.

  Every summary is of the batches of all devices, so what Pax aggregates over
  devices is no type of its own. AUDIO and VIDEO are refused.
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
  """A value on its way out of a compiled step.

  Attributes:
    value: see `BaseLayer.add_summary`. Repeated layers stack theirs along a new
      first dimension.
    summary_type: what it is.
    verbosity: written if the task's `summary_verbosity` is at least this.
  """

  value: jax.Array
  summary_type: SummaryType = flax.struct.field(pytree_node=False)
  verbosity: int = flax.struct.field(pytree_node=False, default=2)


def is_summary(x: Any) -> bool:
  """Whether `x` is a summary; for `is_leaf` of tree functions."""
  return isinstance(x, Summary)


def as_value(value: Any, summary_type: SummaryType) -> jax.Array:
  """Returns a summary's value as an array; text becomes its UTF-8 bytes.

  Raises:
    UserError: there are no summaries of this type.
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
