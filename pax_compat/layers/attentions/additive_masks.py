"""Additive masks of attention, as layers written for Pax make them.

An element is 0 where a target may see a source, and
`get_large_negative_number(dtype)` where it may not. Our own layers pass
structure to each other, which is smaller; see `attention_masks`.

Shapes: B batch, T target time, S source time.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.py_utils import sequences


def _hiding(hidden: jax.Array, dtype: Any) -> jax.Array:
  """Returns the additive mask of a boolean one, True where it hides."""
  return hidden.astype(dtype) * sequences.get_large_negative_number(dtype)


def limited_context_mask(
  left_context: int | None,
  right_context: int | None,
  time_size: int,
  dtype: Any = jnp.float32,
  column_time_size: int | None = None,
) -> jax.Array:
  """Returns the mask [T, S] that hides what is outside a window.

  Args:
    left_context: sources up to the target, inclusive; None for all.
    right_context: sources after the target; None for all.
    time_size: T.
    dtype: of the mask.
    column_time_size: S; None takes T.
  """
  sources = time_size if column_time_size is None else column_time_size
  # Target minus source.
  distance = jnp.arange(time_size)[:, None] - jnp.arange(sources)
  hidden = jnp.zeros(distance.shape, jnp.bool_)
  if left_context is not None:
    hidden |= distance >= left_context
  if right_context is not None:
    hidden |= distance < -right_context
  return _hiding(hidden, dtype)


def causal_mask(input_t: jax.Array) -> jax.Array:
  """Returns the mask [1, 1, T, T] that hides sources after the target.

  Args:
    input_t: [B, T, D], floating; only its shape and its dtype matter.

  Raises:
    UserError: the dtype is not floating.
  """
  if not jnp.issubdtype(input_t.dtype, jnp.floating):
    raise errors.UserError(
      f'causal_mask: the dtype of the inputs is {input_t.dtype}; expected'
      ' floats'
    )
  steps = input_t.shape[1]
  return limited_context_mask(None, 0, steps, input_t.dtype)[None, None]


def segment_mask(
  segment_ids: jax.Array,
  source_segment_ids: jax.Array | None = None,
  dtype: Any = jnp.float32,
) -> jax.Array:
  """Returns the mask [B, 1, T, S] that hides sources of other segments.

  Args:
    segment_ids: [B, T], packed example of each target.
    source_segment_ids: [B, S], likewise for sources; None takes `segment_ids`.
    dtype: of the mask.
  """
  sources = segment_ids if source_segment_ids is None else source_segment_ids
  others = segment_ids[:, None, :, None] != sources[:, None, None, :]
  return _hiding(others, dtype)


def merge_masks(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns the mask that hides what either of two masks hides.

  If only one of them has targets, [.., T, S], the other one, [.., 1, S], hides
  these positions as targets, too.

  Raises:
    UserError: the shapes differ otherwise.
  """
  if a.shape[2] != b.shape[2]:
    a, b = (jnp.minimum(m, m.mT) if m.shape[2] == 1 else m for m in (a, b))
  if a.shape[1:] != b.shape[1:]:
    raise errors.UserError(
      f'merge_masks: the shapes are {a.shape} and {b.shape}; expected the same'
      ' T and S, or one without T'
    )
  return jnp.minimum(a, b)


def causal_segment_mask(
  segment_ids: jax.Array,
  dtype: Any = jnp.float32,
  causal_attention_mask: jax.Array | None = None,
) -> jax.Array:
  """Returns the mask [B, 1, T, T] of causal attention over packed rows.

  Args:
    segment_ids: [B, T], packed example of each position.
    dtype: of the mask.
    causal_attention_mask: [B, T], 0 for sources that earlier targets may see,
      such as those of a prefix, 1 for all others; None is 1 everywhere.
  """
  later = causal_mask(jnp.zeros([1, segment_ids.shape[1], 1], dtype))
  if causal_attention_mask is not None:
    later = later * causal_attention_mask[:, None, None, :].astype(dtype)
  return merge_masks(segment_mask(segment_ids, dtype=dtype), later)


def convert_paddings_to_mask(
  paddings: jax.Array, dtype: Any = jnp.float32
) -> jax.Array:
  """Returns the mask [B, 1, 1, S] that hides padded sources.

  Args:
    paddings: [B, S], 1 where a position is padding.
    dtype: of the mask, unless that of `paddings` is wider.
  """
  hidden = paddings[:, None, None, :]
  return hidden * sequences.get_large_negative_number(dtype)
