"""Video tokenizers: VQ-VAEs and VQGANs of 3D convolutions.

Names as short as `Encoder` are in this package only, not in `layers`.
"""

from pax_compat.layer_core import exports
from pax_compat.layers.video.enc_dec_3dcnn import depth_to_space  # noqa: F401
from pax_compat.layers.video.losses import r1_gradient_penalty  # noqa: F401

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
