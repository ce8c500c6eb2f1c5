"""Inverted residual blocks, https://arxiv.org/abs/1801.04381.

Shapes: B batch, H height, W width, I input channels, O output channels.
"""

import jax

from pax_compat import base_layer
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations
from pax_compat.layers.convolutions import conv
from pax_compat.layers.graph import containers


class InvertedResidualBlock(base_layer.BaseLayer):
  """A 1x1, a depthwise KxK and a 1x1 convolution, beside a shortcut.

  The first one expands the channels, and the last one has no activation. There
  is a shortcut only where the shapes of input and output are equal.

  Attributes:
    input_dim: I.
    output_dim: O.
    expansion: channels of the depthwise convolution as a multiple of I; with 1
      the first convolution is left out.
    conv_params: template of all convolutions.
    kernel_size: K.
    stride: stride of the depthwise convolution in height and width.
    activation_tpl: activation of the first two convolutions.
  """

  input_dim: int = REQUIRED
  output_dim: int = REQUIRED
  expansion: int = 6
  conv_params: Config = sub_config_field(conv.ConvBNAct)
  kernel_size: int = 3
  stride: int = 1
  activation_tpl: Config = sub_config_field(activations.ReLU6)

  def setup(self):
    inner, size = self.expansion * self.input_dim, self.kernel_size
    expansion = self._conv((1, 1, self.input_dim, inner))
    body = [
      *([expansion] if self.expansion != 1 else []),
      self._conv((size, size, 1, inner), self.stride),
      self._conv((1, 1, inner, self.output_dim)).set(
        activation_tpl=activations.Identity.config()
      ),
    ]
    self.create_child('body', containers.Sequential.config(layers=body))

  def _conv(self, shape: tuple[int, ...], stride: int = 1) -> Config:
    return self.conv_params.clone().set(
      filter_shape=shape,
      filter_stride=(stride, stride),
      activation_tpl=self.activation_tpl.clone(),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, H, W, I] to [B, H', W', O]."""
    outputs = self.body(inputs)
    if self.input_dim == self.output_dim and self.stride == 1:
      outputs = outputs + inputs
    return self.shard(outputs, self.activation_split_dims_mapping.out)
