"""Projections with batch normalisation over padded time.

Shapes: B batch, T time, I input dims, O output dims.
"""

import jax

from pax_compat import base_layer
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations, linears
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.paddings import apply_paddings


class PaddedProjection(base_layer.BaseLayer):
  """A projection, a batch normalisation and an activation over padded time.

  Padded positions do not affect the statistics of the batch, and the output is
  zero there.

  Attributes:
    input_dims: I.
    output_dims: O.
    projection_tpl: the projection, without an activation.
    batch_norm_tpl: normalisation of the O dims, or None.
    activation_tpl: the activation.
  """

  input_dims: int = REQUIRED
  output_dims: int = REQUIRED
  projection_tpl: Config = sub_config_field(
    linears.FeedForward,
    has_bias=False,
    activation_tpl=activations.Identity.config(),
  )
  batch_norm_tpl: Config | None = sub_config_field(norm_layers.BatchNorm)
  activation_tpl: Config = sub_config_field(activations.ReLU)

  def setup(self):
    self.create_child(
      'projection',
      self.projection_tpl,
      input_dims=self.input_dims,
      output_dims=self.output_dims,
    )
    if self.batch_norm_tpl is not None:
      self.create_child('bn', self.batch_norm_tpl, dim=self.output_dims)
    self.create_child('activation', self.activation_tpl)

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, I] to [B, T, O].

    Args:
      inputs: [B, T, I].
      paddings: [B, T], 1 where a position is padding.
    """
    outputs = self.projection(inputs)
    if self.batch_norm_tpl is not None:
      outputs = self.bn(outputs, paddings)
    return apply_paddings(self.activation(outputs), paddings)
