"""Vision Transformers."""

from pax_compat.layer_core import exports
from pax_compat.layers.vits.patches import (  # noqa: F401
  image_to_patch,
  interpolate_embedding_2d,
  patch_to_image,
)
from pax_compat.layers.vits.vision_transformer import (  # noqa: F401
  build_vision_transformer_hparams_for_test,
)

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
