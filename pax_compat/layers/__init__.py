"""All layers by name: `layers.Linear`."""

from pax_compat.layer_core import exports

_apart = ('quantization', 'video')
_layers = exports.public_layers(__name__, __path__, apart=_apart)
globals().update(_layers)
__all__ = list(_layers)
