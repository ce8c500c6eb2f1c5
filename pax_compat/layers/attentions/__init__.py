"""Attention layers, their projections and masks."""

from pax_compat.layer_core import exports
from pax_compat.layers.attentions.attention_masks import (
  causal_mask,
  padding_mask,
  segment_mask,
)

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = ['causal_mask', 'padding_mask', 'segment_mask', *_layers]
