"""A wrong translation, registered on import.

The feed-forward layers of Lingvo's Transformer have a ReLU, this one does not.
"""

from adaptors.translate import registry
from pax_compat.layers import activations

_CLASS = 'lingvo.core.layers_with_attention.TransformerFeedForwardLayer'
registry.load_translators()
_right = registry.registered()[_CLASS]


@registry.translates(_CLASS)
def wrong_feed_forward(view):
  """`TransformerFeedForwardLayer` without its activation."""
  translated = _right(view)
  translated.config.activation_tpl = activations.Identity.config()
  return translated
