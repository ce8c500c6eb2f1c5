"""Auxiliary losses that a model counts itself.

What layers add by `add_aux_loss` is added to the loss that is minimised, but it
is in no metric. A model whose own loss is to have it takes it away from there.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer


def call_and_take(
  layer: base_layer.BaseLayer, *args: Any, **kwargs: Any
) -> tuple[Any, jax.Array]:
  """Calls a layer and takes the auxiliary losses of all layers in it.

  Args:
    layer: a child of the layer that is being computed.
    *args: what it is called with.
    **kwargs: likewise.

  Returns:
    What the layer returns; and the sum [] of those losses, 0 where they are not
    collected. Nobody else counts them then.
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
