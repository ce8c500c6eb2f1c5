"""Masks of attention: which sources a target may see.

Inside, masks are boolean, True where a target may see a source. Attention takes
Pax's additive masks too; see `AttentionMask`.

Shapes: B batch, T target time, S source time, L decoding steps, N heads. All
masks have four dimensions and broadcast to [B, N, T, S].
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import errors

# An additive mask is this times the largest float where a source is hidden.
_HIDDEN = -0.7

_Method = TypeVar('_Method', bound=Callable[..., Any])


class SegmentMask(NamedTuple):
  """A mask that hides sources of other segments, as the ids of the segments.

  Fused kernels take ids, which are much smaller than the mask.

  Attributes:
    targets: [B, T], int.
    sources: [B, S], int.
  """

  targets: jax.Array
  sources: jax.Array


@flax.struct.dataclass
class AttentionMask:
  """What attention may see, as structure: no array [B, 1, T, S] is needed.

  It stands wherever Pax has an additive `atten_mask`. Causal attention over
  packed rows, for example, is

    AttentionMask(SegmentMask(segment_ids, segment_ids), causal=True)

  Attributes:
    visible: boolean, True where a target may see a source, or a `SegmentMask`;
      None hides nothing.
    causal: whether sources after the target are hidden too.
  """

  visible: jax.Array | SegmentMask | None = None
  causal: bool = flax.struct.field(pytree_node=False, default=False)

  @classmethod
  def of(cls, mask: Any, *, where: str) -> 'AttentionMask':
    """Returns a mask of any kind as structure.

    Args:
      mask: an `AttentionMask`; a `SegmentMask`; a boolean array, True where a
        target may see a source; or an additive array of floats, as in Pax: 0
        where it may see it, and hidden where the number is below half of -0.7
        times the dtype's maximum (it is not added to the logits). Arrays
        broadcast to [B, N, T, S]. None hides nothing.
      where: prefix of the error message.

    Raises:
      UserError: the array is neither boolean nor floating, or does not have
        four dimensions.
    """
    if isinstance(mask, AttentionMask):
      return mask
    if mask is None or isinstance(mask, SegmentMask):
      return cls(mask)
    mask = jnp.asarray(mask)
    if mask.ndim == 4 and mask.dtype == jnp.bool_:
      return cls(mask)
    if mask.ndim == 4 and jnp.issubdtype(mask.dtype, jnp.floating):
      return cls(mask >= 0.5 * _HIDDEN * float(jnp.finfo(mask.dtype).max))
    raise errors.UserError(
      f'{where}: the mask is {mask.dtype}{list(mask.shape)}; expected booleans,'
      ' True where a target may see a source, or floats to add to the logits,'
      ' that broadcast to [B, N, T, S]'
    )

  def restricted(self, *masks: Any, causal: bool = False) -> 'AttentionMask':
    """Returns a mask that hides more: boolean masks, and later sources."""
    return AttentionMask(
      combine_masks(self.visible, *masks), causal=self.causal or causal
    )

  def or_none(self) -> 'AttentionMask | None':
    """Returns the mask; None if it hides nothing."""
    return self if self.causal or self.visible is not None else None

  def additive(
    self, targets: int, sources: int, dtype: Any = jnp.float32
  ) -> jax.Array:
    """Returns the additive mask [B or 1, 1, T or 1, S], as Pax's layers take.

    Args:
      targets: T.
      sources: S.
      dtype: of the mask.
    """
    visible = as_array(self.visible)
    if self.causal:
      visible = combine_masks(visible, causal_mask(targets, sources))
    if visible is None:
      return jnp.zeros([1, 1, 1, sources], dtype)
    hidden = jnp.asarray(_HIDDEN * float(jnp.finfo(dtype).max), dtype)
    return jnp.where(visible, jnp.zeros([], dtype), hidden)


# What attention takes as a mask; see `AttentionMask.of`.
Mask = AttentionMask | SegmentMask | jax.Array | None

# The mask of causal attention without padding or packing.
CAUSAL = AttentionMask(causal=True)


def takes_structure(method: _Method) -> _Method:
  """Marks a method that takes `AttentionMask`s, and segment ids for stacks.

  Other layers, written for Pax, are given additive masks instead.
  """
  method.takes_structure = True
  return method


def is_structural(layer: Any, method: str = '__call__') -> bool:
  """Whether a layer's method is marked by `takes_structure`."""
  return getattr(getattr(type(layer), method), 'takes_structure', False)


def fit(
  layer: Any, mask: AttentionMask, targets: int, sources: int
) -> AttentionMask | jax.Array:
  """Returns a mask as the layer takes it: as structure, or else additive.

  Args:
    layer: an attention, or a layer that contains one.
    mask: the mask.
    targets: T.
    sources: S.
  """
  return mask if is_structural(layer) else mask.additive(targets, sources)


def with_steps(mask: Any) -> Any:
  """Returns the mask of a decoding step, [B, 1, S], as [B, 1, 1, S]."""
  if getattr(mask, 'ndim', 4) == 3:
    return mask[:, :, None]
  return mask


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


def example_mask(first: jax.Array, length: int) -> AttentionMask:
  """Returns the mask of decoding that hides what is before an example.

  Args:
    first: [B], index of the example's first position.
    length: S, the capacity of the cache in positions.
  """
  is_inside = jnp.arange(length) >= first[:, None]
  return AttentionMask(is_inside[:, None, None, :], causal=True)


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
