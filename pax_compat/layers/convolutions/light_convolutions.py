"""The convolution block of Conformers.

Shapes: B batch, T time, D model dims, K kernel size.
"""

import math

import jax

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightInit
from pax_compat.config import REQUIRED, Config, is_set, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import activations, linears, stochastics
from pax_compat.layers.convolutions.depthwise_convolutions import (
  DepthwiseConv1D,
)
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.template_fields import (
  agreed,
  create_agreed,
  keep_prob,
  split,
)

# The linear layers at the start are halves of a matrix [D, 2 * D]. This scales
# Xavier's bound for [D, D], sqrt(6 / (D + D)), to the bound for [D, 2 * D].
_XAVIER_OF_HALF = WeightInit.Xavier(math.sqrt(2 / 3))


class LightConv1D(base_layer.BaseLayer):
  """The convolution block of Conformers, https://arxiv.org/abs/2005.08100.

  Layer normalisation, gated linear unit, depthwise convolution, normalisation,
  activation, linear layer and dropout, with a residual connection around them.

  Attributes:
    input_dims: D.
    kernel_size: K.
    conv_activation_tpl: the activation after the convolution.
    dropout_prob: dropout probability of the result; 0 leaves it to
      `dropout_tpl`, by default without dropout.
    ln_tpl: the normalisation of the inputs.
    linear_start_tpl: each of the two linear layers of the gated linear unit;
      unless it sets `params_init`, they are initialised as halves of one Xavier
      matrix [D, 2 * D].
    depthwise_conv_tpl: the convolution.
    conv_norm_layer_tpl: the normalisation after the convolution.
    linear_end_tpl: the linear layer at the end.
    dropout_tpl: the dropout.
    is_causal: whether outputs do not depend on later positions; False leaves it
      to `depthwise_conv_tpl`.
    use_2d_conv_norm: whether the normalisation after the convolution gets
      [B, T, 1, D] instead of [B, T, D].
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights over the mesh.

    Attributes:
      df: mapping of the linear layers at the start [D, D]; the one at the end
        uses the transposed mapping.
      him: mapping of the convolution; see `DepthwiseConv1D`.
    """

    df: SplitDimsMapping = None
    him: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations over the mesh.

    Attributes:
      blf: mapping of [B, T, D] between the linear layers.
      bld: mapping of [B, T, D] after the linear layer at the end.
    """

    blf: SplitDimsMapping = None
    bld: SplitDimsMapping = None

  input_dims: int = REQUIRED
  kernel_size: int = REQUIRED
  conv_activation_tpl: Config = sub_config_field(activations.Swish)
  dropout_prob: float = 0.0
  ln_tpl: Config = sub_config_field(norm_layers.LayerNorm)
  linear_start_tpl: Config = sub_config_field(linears.FeedForward)
  depthwise_conv_tpl: Config = sub_config_field(DepthwiseConv1D)
  conv_norm_layer_tpl: Config = sub_config_field(norm_layers.BatchNorm)
  linear_end_tpl: Config = sub_config_field(linears.FeedForward)
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  is_causal: bool = False
  use_2d_conv_norm: bool = False

  def setup(self):
    weights = self.weight_split_dims_mapping
    if weights.wt is not None:
      raise errors.UserError(
        f'LightConv1D.weight_split_dims_mapping.wt is {list(weights.wt)};'
        ' expected df and him, the mappings of its layers'
      )
    outputs, dims = self.activation_split_dims_mapping, self.input_dims
    self.create_child('ln', self.ln_tpl, dim=dims)
    for name in ('linear_start_act', 'linear_start_gated'):
      self._create_linear(
        name, 'linear_start_tpl', self._half(), weights.df, outputs.blf
      )
    self._create_convolution(weights.him)
    self.create_child('conv_norm', self.conv_norm_layer_tpl, dim=dims)
    self.create_child('conv_activation', self.conv_activation_tpl)
    reverse = None if weights.df is None else tuple(reversed(weights.df))
    self._create_linear(
      'linear_end', 'linear_end_tpl', self.linear_end_tpl, reverse, outputs.bld
    )
    drop = keep_prob(self.dropout_prob)
    create_agreed(self, 'dropout', 'dropout_tpl', keep_prob=drop)

  def _half(self) -> Config:
    """Returns the template of one linear layer of the gated linear unit."""
    tpl = self.linear_start_tpl.clone()
    if not is_set(tpl, 'params_init'):
      tpl.params_init = _XAVIER_OF_HALF
    return tpl

  def _create_linear(
    self,
    name: str,
    field: str,
    tpl: Config,
    weight: SplitDimsMapping,
    output: SplitDimsMapping,
  ):
    where = f'LightConv1D.{field}'
    self.create_child(
      name,
      tpl,
      **linears.no_activation(where, tpl),
      **agreed(
        where, tpl, input_dims=self.input_dims, output_dims=self.input_dims
      ),
      **split(tpl, 'weight_split_dims_mapping', wt=weight),
      **split(tpl, 'activation_split_dims_mapping', out=output),
    )

  def _create_convolution(self, him: SplitDimsMapping):
    tpl = self.depthwise_conv_tpl
    self.create_child(
      'depthwise_conv1d',
      tpl,
      **agreed(
        'LightConv1D.depthwise_conv_tpl',
        tpl,
        filter_shape=(self.kernel_size, self.input_dims, 1),
        is_causal=self.is_causal or None,
      ),
      **split(tpl, 'weight_split_dims_mapping', him=him),
    )

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Returns `inputs` plus the output of the block, [B, T, D].

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
    outputs = inputs + self.dropout(x)
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def _conv_norm(self, x: jax.Array, paddings: jax.Array) -> jax.Array:
    if not self.use_2d_conv_norm:
      return self.conv_norm(x, paddings)
    return self.conv_norm(x[:, :, None], paddings)[:, :, 0]
