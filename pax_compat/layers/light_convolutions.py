"""The convolution block of Conformers.

Shapes: B batch, T time, D model dims, K kernel size.
"""

import math

import jax

from pax_compat import base_layer
from pax_compat.base_layer import WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import (
  activations,
  linears,
  normalizations,
  stochastics,
)
from pax_compat.layers.depthwise_convolutions import DepthwiseConv1D
from pax_compat.sharding import SplitDimsMapping

# Makes sqrt(6 / (D + D)), the bound for [D, D], that for [D, 2 * D].
_XAVIER_OF_HALF = WeightInit.Xavier(math.sqrt(2 / 3))


class LightConv1D(base_layer.BaseLayer):
  """The convolution block of Conformers, https://arxiv.org/abs/2005.08100.

  Layer normalisation, gated linear unit, depthwise convolution, normalisation,
  activation, linear layer and dropout, with a residual connection around them.

  Attributes:
    input_dims: D.
    kernel_size: K.
    conv_activation_tpl: the activation after the convolution.
    dropout_prob: the probability that an element of the result is dropped.
    ln_tpl: the normalisation of the inputs.
    linear_start_tpl: each of the two linear layers of the gated linear unit.
    depthwise_conv_tpl: the convolution.
    conv_norm_layer_tpl: the normalisation after the convolution.
    linear_end_tpl: the linear layer at the end.
    dropout_tpl: the dropout.
    is_causal: whether no output sees what comes after it in time.
    use_2d_conv_norm: whether the normalisation after the convolution gets
      [B, T, 1, D] rather than [B, T, D].
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """How the weights are split over the mesh.

    Attributes:
      df: of the two linear layers at the start [D, D]; the one at the end is
        split the other way round.
      him: of the convolution; see `DepthwiseConv1D`.
    """

    df: SplitDimsMapping = None
    him: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """How what is computed is split over the mesh.

    Attributes:
      blf: [B, T, D] between the linear layers.
      bld: [B, T, D] after the linear layer at the end.
    """

    blf: SplitDimsMapping = None
    bld: SplitDimsMapping = None

  input_dims: int = REQUIRED
  kernel_size: int = REQUIRED
  conv_activation_tpl: Config = sub_config_field(activations.Swish)
  dropout_prob: float = 0.0
  ln_tpl: Config = sub_config_field(normalizations.LayerNorm)
  linear_start_tpl: Config = sub_config_field(linears.FeedForward)
  depthwise_conv_tpl: Config = sub_config_field(DepthwiseConv1D)
  conv_norm_layer_tpl: Config = sub_config_field(normalizations.BatchNorm)
  linear_end_tpl: Config = sub_config_field(linears.FeedForward)
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  is_causal: bool = False
  use_2d_conv_norm: bool = False

  def setup(self):
    df = self.weight_split_dims_mapping.df
    split = self.activation_split_dims_mapping
    dims = self.input_dims
    self.create_child('ln', self.ln_tpl, dim=dims)
    for name in ('linear_start_act', 'linear_start_gated'):
      # Halves of one matrix of twice the outputs, and so of its first values.
      half = self.linear_start_tpl.clone().set(params_init=_XAVIER_OF_HALF)
      self._create_linear(name, half, df, split.blf)
    self._create_convolution()
    self.create_child('conv_norm', self.conv_norm_layer_tpl, dim=dims)
    self.create_child('conv_activation', self.conv_activation_tpl)
    reverse = None if df is None else tuple(reversed(df))
    self._create_linear('linear_end', self.linear_end_tpl, reverse, split.bld)
    keep_prob = 1.0 - self.dropout_prob
    self.create_child('dropout', self.dropout_tpl, keep_prob=keep_prob)

  def _create_linear(
    self,
    name: str,
    tpl: Config,
    weight: SplitDimsMapping,
    output: SplitDimsMapping,
  ):
    fields = {}
    if weight is not None:
      split = tpl.cls.WeightSharding.config(wt=weight)
      fields['weight_split_dims_mapping'] = split
    if output is not None:
      split = tpl.cls.ActivationSharding.config(out=output)
      fields['activation_split_dims_mapping'] = split
    self.create_child(
      name,
      tpl,
      input_dims=self.input_dims,
      output_dims=self.input_dims,
      activation_tpl=activations.Identity.config(),
      **fields,
    )

  def _create_convolution(self):
    tpl, fields = self.depthwise_conv_tpl, {}
    him = self.weight_split_dims_mapping.him
    if him is not None:
      split = tpl.cls.WeightSharding.config(him=him)
      fields['weight_split_dims_mapping'] = split
    self.create_child(
      'depthwise_conv1d',
      tpl,
      filter_shape=(self.kernel_size, self.input_dims, 1),
      is_causal=self.is_causal,
      **fields,
    )

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Returns `inputs` [B, T, D] plus the block's result [B, T, D].

    Args:
      inputs: [B, T, D].
      paddings: [B, T].
    """
    between = self.activation_split_dims_mapping.blf
    x = self.ln(inputs, paddings)
    gate = jax.nn.sigmoid(self.linear_start_gated(x))
    x = self.linear_start_act(x) * gate
    x = self.shard(self.depthwise_conv1d(x, paddings), between)
    x = self.shard(self._conv_norm(x, paddings), between)
    x = self.linear_end(self.conv_activation(x))
    return inputs + self.dropout(x)

  def _conv_norm(self, x: jax.Array, paddings: jax.Array) -> jax.Array:
    if not self.use_2d_conv_norm:
      return self.conv_norm(x, paddings)
    return self.conv_norm(x[:, :, None], paddings)[:, :, 0]
