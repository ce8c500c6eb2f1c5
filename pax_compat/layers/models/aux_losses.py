"""Auxiliary losses as part of a model's own loss.

A model whose loss metric includes them, but not the `total_loss` of its
network, removes them from the collection here.
"""

from typing import Any

import flax.linen as nn
import jax

from pax_compat import base_layer
from pax_compat.layer_core.losses import aux_losses


def call_and_take(
  layer: base_layer.BaseLayer, *args: Any, **kwargs: Any
) -> tuple[Any, jax.Array]:
  """Calls a layer, and removes its auxiliary losses from the collection.

  Args:
    layer: a child of the calling layer.
    *args: its arguments.
    **kwargs: likewise.

  Returns:
    The layer's output; and the sum [] of the values of the losses of all layers
    in it, 0 if they are not collected.
  """
  taken = []

  def take(losses):
    taken.append(losses)
    return {}

  call = nn.map_variables(
    lambda layer: layer(*args, **kwargs),
    base_layer.AUX_LOSS,
    trans_out_fn=take,
    mutable=layer.is_mutable_collection(base_layer.AUX_LOSS),
  )
  output = call(layer)
  return output, aux_losses.total(taken).value
