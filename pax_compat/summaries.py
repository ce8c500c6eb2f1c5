"""What a layer tells its observers: scalars, histograms, images and texts."""

import enum
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np


class SummaryType(enum.Enum):
  """What a summary's value is."""

  SCALAR = 'scalar'
  HISTOGRAM = 'histogram'
  IMAGE = 'image'
  TEXT = 'text'


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
  """Returns a summary's value as an array; text becomes its UTF-8 bytes."""
  if summary_type is SummaryType.TEXT and isinstance(value, str):
    value = np.frombuffer(value.encode(), np.uint8)
  return jnp.asarray(value)
