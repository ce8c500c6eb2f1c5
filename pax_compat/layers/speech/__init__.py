"""Encoders of speech."""

from pax_compat.layer_core import exports

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
