"""Layers with quantized weights, under the names of the others.

`layers.quantization.Linear` is not `layers.Linear`. `quantize` rewrites the
config of a model and converts its weights.
"""

from pax_compat.layer_core import exports

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
