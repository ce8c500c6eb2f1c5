"""Models of tokens and classes, and the settings of their decoders."""

from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  DecoderHParams,
  FlatBeamSearchHParams,
  GreedyDecoderHParams,
  PrunedBeamSearchHParams,
  SampleDecoderHParams,
)
from pax_compat.layer_core import exports
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
)

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = [
  'BeamSearchHParams',
  'DecoderHParams',
  'FlatBeamSearchHParams',
  'GreedyDecoderHParams',
  'LanguageModelType',
  'PrunedBeamSearchHParams',
  'SampleDecoderHParams',
  *_layers,
]
