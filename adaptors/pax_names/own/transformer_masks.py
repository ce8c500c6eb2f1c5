"""Masks of a Transformer layer's attentions: `praxis.layers.transformers`.

They are additive. Our layers take paddings and segments instead, and need no
array of T x T for causal attention.

Shapes: B batch, T target time, S source time, D features.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.attentions import additive_masks


def compute_attention_masks_for_fprop(
  inputs: jax.Array,
  paddings: jax.Array | None = None,
  causal_attention: bool | None = False,
  segment_mask: jax.Array | None = None,
  cross_inputs: jax.Array | None = None,
  cross_paddings: jax.Array | None = None,
  cross_segment_mask: jax.Array | None = None,
  fold_padding_with_segment_mask: bool | None = False,
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the masks of self-attention and cross-attention.

  Args:
    inputs: [B, T, D].
    paddings: [B, T], 1 where a position is padding.
    causal_attention: whether sources after the target are hidden.
    segment_mask: [B, 1, T, T], additive; None for one segment.
    cross_inputs: [B, S, D]; None for no cross-attention.
    cross_paddings: [B, S], of `cross_inputs`.
    cross_segment_mask: [B, 1, T, S], additive; None for one segment.
    fold_padding_with_segment_mask: whether `segment_mask` hides padding too;
      `paddings` is then not read.

  Returns:
    A mask [1 or B, 1, 1 or T, T], and one [B, 1, 1 or T, S] or None.

  Raises:
    UserError: something that is needed is missing.
  """
  if fold_padding_with_segment_mask:
    mask = _given('segment_mask', segment_mask)
  else:
    mask = additive_masks.convert_paddings_to_mask(
      _given('paddings', paddings), inputs.dtype
    )
    if segment_mask is not None:
      mask = additive_masks.merge_masks(mask, segment_mask)
  if causal_attention:
    mask = additive_masks.merge_masks(mask, additive_masks.causal_mask(inputs))
  if cross_inputs is None:
    return mask, None
  return mask, _cross_mask(
    _given('cross_paddings', cross_paddings),
    cross_inputs.dtype,
    cross_segment_mask,
  )


def compute_attention_masks_for_extend_step(
  time_step: jax.Array,
  seq_len: int,
  segment_mask: jax.Array | None = None,
  cross_paddings: jax.Array | None = None,
  cross_segment_mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the masks of a decoding step.

  Args:
    time_step: [], the position that is read.
    seq_len: T.
    segment_mask: [B, 1, T], additive; None for one segment.
    cross_paddings: [B, S]; None for no cross-attention.
    cross_segment_mask: [B, 1, S], additive; None for one segment.

  Returns:
    A mask [1 or B, 1, T], and one [B, 1, 1, S] or None.
  """
  later = jnp.arange(seq_len)[None] > jnp.asarray(time_step)
  mask = additive_masks.convert_paddings_to_mask(later)[:, 0]
  if segment_mask is not None:
    mask = jnp.minimum(mask, segment_mask)
  if cross_paddings is None:
    return mask, None
  if cross_segment_mask is not None:
    cross_segment_mask = cross_segment_mask[:, None]
  return mask, _cross_mask(cross_paddings, mask.dtype, cross_segment_mask)


def _cross_mask(paddings, dtype, segment_mask) -> jax.Array:
  mask = additive_masks.convert_paddings_to_mask(paddings, dtype)
  return mask if segment_mask is None else jnp.minimum(mask, segment_mask)


def _given(name: str, value: jax.Array | None) -> jax.Array:
  if value is None:
    raise errors.UserError(
      f'compute_attention_masks_for_fprop: {name} is missing'
    )
  return value
