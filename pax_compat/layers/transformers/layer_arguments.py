"""Arguments of a stack's layers that depend on their class."""

from typing import Any

import jax

from pax_compat import base_layer
from pax_compat.layers.attentions.attention_masks import AttentionMask, fit


def of_layer(
  layer: base_layer.BaseLayer,
  mask: tuple[AttentionMask, int],
  cross_mask: tuple[AttentionMask | None, int],
  cross_segment_pos: jax.Array | None,
  segment_ids: jax.Array | None,
) -> dict[str, Any]:
  """Returns the arguments that depend on a layer's class.

  The masks are with the numbers of their sources.
  """
  targets = mask[1]
  own = {'attention_mask': fit(layer, mask[0], targets, targets)}
  if cross_mask[0] is not None:
    own['cross_attention_mask'] = fit(
      layer, cross_mask[0], targets, cross_mask[1]
    )
    if cross_segment_pos is not None:
      own['cross_segment_pos'] = cross_segment_pos
  if _gates_sentences(layer):
    own['segment_ids'] = segment_ids
  return own


def takes_segments(layer: base_layer.BaseLayer) -> bool:
  """Whether the mask of a layer's self-attention may be a `SegmentMask`."""
  tpl = getattr(layer, 'tr_atten_tpl', None)
  takes = getattr(getattr(tpl, 'cls', None), 'takes_segments', None)
  return takes is not None and takes(tpl)


def _gates_sentences(layer: base_layer.BaseLayer) -> bool:
  """Whether a layer has experts with sentence-level gating."""
  tpl = getattr(layer, 'tr_fflayer_tpl', None)
  return getattr(tpl, 'moe_gating_embedding_level', 'token') == 'sentence'
