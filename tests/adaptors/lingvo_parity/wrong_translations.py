"""A translation that is wrong, and registers itself when it is imported.

The feed-forward layers of Lingvo's Transformer have a ReLU, and here none.
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
