"""Chains of layers whose arguments are a stack."""

from pax_compat.layer_core import exports
from pax_compat.layers.chain.chain import call_chain  # noqa: F401 (Pax)
from pax_compat.layers.chain.chain_extensions import (  # noqa: F401 (Pax)
  add_residual,
  apply_padding,
  chain,
  copy_n_times,
  dict_to_args,
  feed_forward,
  full_like,
  kwargs_with_name,
  log_args,
  repeat,
)

_layers = exports.public_layers(__name__, __path__)
globals().update(_layers)
__all__ = list(_layers)
