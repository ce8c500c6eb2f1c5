"""Masks of attention: boolean, True where a target may see a source.

Shapes: B batch, T target time, S source time, L decoding steps, N heads. All
masks have four dimensions and broadcast to [B, N, T, S].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SegmentMask(NamedTuple):
  """A mask that hides sources of other segments, as the ids of the segments.

  Fused kernels take ids, which are much smaller than the mask.

  Attributes:
    targets: [B, T], int.
    sources: [B, S], int.
  """

  targets: jax.Array
  sources: jax.Array


def as_array(mask: jax.Array | SegmentMask | None) -> jax.Array | None:
  """Returns a mask as an array [B, 1, T, S], if it is a `SegmentMask`."""
  if isinstance(mask, SegmentMask):
    return segment_mask(mask.targets, mask.sources)
  return mask


def self_attention_segments(
  segment_ids: jax.Array | None, paddings: jax.Array | None
) -> SegmentMask | None:
  """Returns the mask of self-attention over packed and padded rows.

  Padding is a segment of its own, in which it attends to itself.

  Args:
    segment_ids: [B, T], not negative; or None.
    paddings: [B, T], 1 where a position is padding; or None.
  """
  ids = segment_ids
  if paddings is not None:
    inside = 0 if ids is None else ids.astype(jnp.int32)
    ids = jnp.where(paddings == 0, inside, -1)
  return None if ids is None else SegmentMask(ids, ids)


def padding_mask(paddings: jax.Array) -> jax.Array:
  """Returns the mask [B, 1, 1, S] that hides padded sources.

  Args:
    paddings: [B, S], 1 where a position is padding.
  """
  return (paddings == 0)[:, None, None, :]


def causal_mask(targets: int, sources: int | None = None) -> jax.Array:
  """Returns the mask [1, 1, T, S] that hides sources after the target.

  The flag `causal` of attention is faster.

  Args:
    targets: T.
    sources: S; None takes T.
  """
  sources = targets if sources is None else sources
  past = jnp.arange(targets)[:, None] >= jnp.arange(sources)
  return past[None, None]


def segment_mask(
  segment_ids: jax.Array, source_segment_ids: jax.Array | None = None
) -> jax.Array:
  """Returns the mask [B, 1, T, S] that hides sources of other segments.

  Args:
    segment_ids: [B, T], packed example of each target.
    source_segment_ids: [B, S], likewise for sources; None takes `segment_ids`.
  """
  if source_segment_ids is None:
    source_segment_ids = segment_ids
  same = segment_ids[:, :, None] == source_segment_ids[:, None, :]
  return same[:, None]


def step_mask(
  time_step: jax.Array | int, steps: int, length: int, *, causal: bool = True
) -> jax.Array:
  """Returns the mask that hides positions not decoded yet.

  Args:
    time_step: [], index of the first of the L new positions.
    steps: L.
    length: S, the capacity of the cache in positions.
    causal: whether later new positions are hidden too.

  Returns:
    [1, 1, L, S], or [1, 1, 1, S] if not `causal`.
  """
  last = time_step + jnp.arange(0 if causal else steps - 1, steps)
  return (last[:, None] >= jnp.arange(length))[None, None]


def combine_masks(
  *masks: jax.Array | SegmentMask | None,
) -> jax.Array | SegmentMask | None:
  """Returns the conjunction of masks; None hides nothing."""
  given = [mask for mask in masks if mask is not None]
  if len(given) < 2:
    return given[0] if given else None
  combined, *others = map(as_array, given)
  for mask in others:
    combined = combined & mask
  return combined
