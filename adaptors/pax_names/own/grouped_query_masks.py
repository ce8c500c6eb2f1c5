"""Masks of `praxis.layers.grouped_query_attention`.

Pax's are boolean and True where a source is hidden, which to our attention
would mean the opposite; these are additive.

Shapes: B batch, T target time, S source time.
"""

import jax
import jax.numpy as jnp

from pax_compat.layers.attentions import additive_masks


def causal_mask(seqlen: int) -> jax.Array:
  """Returns the mask [1, 1, T, T] that hides sources after the target."""
  return additive_masks.causal_mask(jnp.zeros([1, seqlen, 1]))


def segment_mask(
  segment_ids: jax.Array, src_segment_ids: jax.Array | None = None
) -> jax.Array:
  """Returns the mask [B, 1, T, S] that hides sources of other segments."""
  return additive_masks.segment_mask(segment_ids, src_segment_ids)


def attention_mask(segment_ids: jax.Array) -> jax.Array:
  """Returns the mask [B, 1, T, T] of causal attention over packed rows."""
  return additive_masks.causal_segment_mask(segment_ids)


def padding_mask(paddings: jax.Array) -> jax.Array:
  """Returns the mask [B, 1, 1, T] that hides padded sources."""
  return additive_masks.convert_paddings_to_mask(paddings)
