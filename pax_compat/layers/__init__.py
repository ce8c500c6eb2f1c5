"""All layers by name: `layers.Linear`."""

from pax_compat.layer_core import exports

_layers = exports.public_layers(__name__, __path__, apart=('quantization',))
globals().update(_layers)
__all__ = list(_layers)
