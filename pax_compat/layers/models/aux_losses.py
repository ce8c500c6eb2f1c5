"""Auxiliary losses as part of a model's own loss.

The trainer adds losses of `add_aux_loss` to the loss that it minimises and
reports. A model whose loss metric includes them already removes them from the
collection here.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer


def call_and_take(
  layer: base_layer.BaseLayer, *args: Any, **kwargs: Any
) -> tuple[Any, jax.Array]:
  """Calls a layer, and removes its auxiliary losses from the collection.

  Args:
    layer: a child of the calling layer.
    *args: its arguments.
    **kwargs: likewise.

  Returns:
    The layer's output; and the sum [] of the losses of all layers in it, 0 if
    they are not collected.
  """
  taken = []

  def take(losses):
    taken.extend(jax.tree.leaves(losses))
    return {}

  call = nn.map_variables(
    lambda layer: layer(*args, **kwargs),
    base_layer.AUX_LOSS,
    trans_out_fn=take,
    mutable=layer.is_mutable_collection(base_layer.AUX_LOSS),
  )
  return call(layer), sum(map(jnp.sum, taken), jnp.float32(0.0))
