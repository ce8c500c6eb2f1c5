"""N-grammers: embeddings of pairs of latent ids."""

from pax_compat.layer_core import exports
from pax_compat.layers.ngrammer.ngrammers import (  # noqa: F401 (Pax)
  get_bigram_ids,
)

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
