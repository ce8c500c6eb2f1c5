"""Networks for images without shortcuts and normalisations."""

from pax_compat.layer_core import exports
from pax_compat.layers.vanillanets.blocks import tailored_lrelu  # noqa: F401

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
