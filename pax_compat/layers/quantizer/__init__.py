"""Vector quantizers: the nearest vectors of a codebook."""

from pax_compat.layer_core import exports
from pax_compat.layers.quantizer.vector_quantizers import (  # noqa: F401 (Pax)
  quantize_vector,
)

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
