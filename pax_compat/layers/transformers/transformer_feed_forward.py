"""The feed-forward block of a Transformer.

Shapes: B batch, T time, D model dims, F hidden dims.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import activations, linears, stochastics
from pax_compat.layers.paddings import apply_paddings
from pax_compat.layers.template_fields import agreed, refuse_mappings, split
from pax_compat.layers.transformers.transformer_residuals import (
  FeedForwardBlock,
)


class TransformerFeedForward(FeedForwardBlock):
  """Two projections with an activation between them, and a residual.

  Attributes:
    output_dims: dims of the output; 0 for `input_dims`. Other values need
      `add_skip_connection=False`.
    hidden_dims: F.
    has_bias: whether the projections have biases; True keeps the setting of
      their templates.
    apply_padding_first: whether padded positions are zeroed in the input; else
      after each projection.
    activation_tpl: activation of the hidden layer.
    use_gated_activation: whether the hidden layer is a gated linear unit: the
      product of a linear projection and an activated one.
    fflayer_tpl: the projection (or both) to the hidden layer.
    fflayer2_tpl: the output projection; None copies `fflayer_tpl`.
    relu_dropout_tpl: dropout of the hidden layer.
    relu_dropout_prob: its probability.
    residual_dropout_tpl: dropout of the branch's output.
    add_skip_connection: whether there is a residual connection.
    residual_weight: factor of the branch's output.
    internal_gshard_variance_scaling_fan_in_init: whether the initializer of
      projections is uniform with variance 1 / fan_in, instead of that of their
      templates.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights.

    Attributes:
      ffn0: of the projections to the hidden layer [D, F].
      ffn1: of the output projection [F, D].
    """

    ffn0: SplitDimsMapping = None
    ffn1: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations.

    Attributes:
      ffn0: of the hidden layer [B, T, F].
      ffn1: of the output [B, T, D].
    """

    ffn0: SplitDimsMapping = None
    ffn1: SplitDimsMapping = None

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *FeedForwardBlock.SILENT_UNLESS_SET,
    'internal_gshard_variance_scaling_fan_in_init',
  )

  output_dims: int = 0
  hidden_dims: int = REQUIRED
  has_bias: bool = True
  apply_padding_first: bool = False
  activation_tpl: Config = sub_config_field(activations.ReLU)
  use_gated_activation: bool = False
  fflayer_tpl: Config = sub_config_field(linears.FeedForward)
  fflayer2_tpl: Config | None = None
  relu_dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  relu_dropout_prob: float = 0.0
  residual_dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  add_skip_connection: bool = True
  residual_weight: float = 1.0
  internal_gshard_variance_scaling_fan_in_init: bool = False

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    output_dims = self.output_dims or self.input_dims
    self._check(output_dims)
    self._create_norms('', output_dims)
    self._create_hidden_layer()
    self._create_projection(
      'ffn_layer2',
      self.fflayer2_tpl or self.fflayer_tpl.clone(),
      'ffn2',
      input_dims=self.hidden_dims,
      output_dims=output_dims,
      activation_tpl=activations.Identity.config(),
      weights=self.weight_split_dims_mapping.ffn1,
      outputs=self.activation_split_dims_mapping.ffn1,
    )
    self._create_all_dropouts()

  def _check(self, output_dims: int):
    if self.add_skip_connection and output_dims != self.input_dims:
      raise errors.UserError(
        f'TransformerFeedForward.output_dims is {output_dims} and input_dims'
        f' {self.input_dims}; expected them to be the same, or'
        ' add_skip_connection=False'
      )

  def _create_hidden_layer(self):
    shape = dict(
      input_dims=self.input_dims,
      output_dims=self.hidden_dims,
      weights=self.weight_split_dims_mapping.ffn0,
      outputs=self.activation_split_dims_mapping.ffn0,
    )
    if self.use_gated_activation:
      self._create_projection(
        'ffn_layer1_gate',
        self.fflayer_tpl.clone(),
        'ffn1_gate',
        activation_tpl=self.activation_tpl,
        **shape,
      )
      linear = activations.Identity.config()
      self._create_projection(
        'ffn_layer1', self.fflayer_tpl, 'ffn1', activation_tpl=linear, **shape
      )
    else:
      self._create_projection(
        'ffn_layer1',
        self.fflayer_tpl,
        'ffn1',
        activation_tpl=self.activation_tpl,
        **shape,
      )

  def _create_projection(
    self, name, tpl, checkpoint, *, weights, outputs, **fields
  ):
    fields |= split(tpl, 'weight_split_dims_mapping', wt=weights)
    fields |= split(tpl, 'activation_split_dims_mapping', out=outputs)
    if not self.has_bias:
      where = 'TransformerFeedForward.fflayer_tpl'
      fields |= agreed(where, tpl, has_bias=False)
    if self.internal_gshard_variance_scaling_fan_in_init:
      init = WeightInit.Uniform((3.0 / fields['input_dims']) ** 0.5)
      fields['linear_tpl'] = tpl.linear_tpl.clone().set(params_init=init)
    self.create_child(name, tpl, checkpoint_str=checkpoint, **fields)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the block; returns [B, T, output_dims].

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      segment_ids: ignored; for layers that replace this one.
    """
    del segment_ids
    if self.apply_padding_first and paddings is not None:
      inputs, paddings = apply_paddings(inputs, paddings), None
    outputs = self._add_residual(
      inputs,
      lambda x: self._project(x, paddings),
      skip=self.add_skip_connection,
      residual_weight=self.residual_weight,
    )
    return self.shard(outputs, self.activation_split_dims_mapping.ffn1)

  def _project(
    self, inputs: jax.Array, paddings: jax.Array | None
  ) -> jax.Array:
    """Computes the branch: [B, T, D] -> [B, T, output_dims]."""
    hidden = self.ffn_layer1(inputs)
    if self.use_gated_activation:
      hidden = self.ffn_layer1_gate(inputs) * hidden
    hidden = self.shard(hidden, self.activation_split_dims_mapping.ffn0)
    if paddings is not None:
      hidden = apply_paddings(hidden, paddings)
    outputs = self.ffn_layer2(self.relu_dropout(hidden))
    return outputs if paddings is None else apply_paddings(outputs, paddings)
