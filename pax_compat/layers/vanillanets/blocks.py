"""Blocks without shortcuts, https://openreview.net/forum?id=U0k7XNTiFEq.

Shapes: B batch, H height, W width, I input channels, O output channels.
"""

import math

import jax

from pax_compat import base_layer
from pax_compat.base_layer import WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.convolutions import conv

# The convolutions but the last have O divided by this.
BOTTLENECK = 4


def tailored_lrelu(negative_slope: float, x: jax.Array) -> jax.Array:
  """Returns a leaky ReLU, scaled to keep the variance of normal inputs.

  Args:
    negative_slope: the slope of the leaky ReLU where it is negative.
    x: [...].
  """
  scale = math.sqrt(2.0 / (1 + negative_slope**2))
  return scale * jax.nn.leaky_relu(x, negative_slope)


def default_conv() -> Config:
  """Returns the default of `conv_params`."""
  return conv.Conv2D.config(
    bias=True, params_init=WeightInit.ScaledDeltaOrthogonal(1.0)
  )


class VanillaBlock(base_layer.BaseLayer):
  """A 1x1, a KxK and a 1x1 convolution, each with a leaky ReLU.

  Attributes:
    input_dim: I.
    output_dim: O; the first two convolutions have a fourth of it.
    conv_params: template of all convolutions.
    kernel_size: K.
    stride: stride of the KxK convolution in height and width.
    negative_slope: slope of the leaky ReLU where it is negative.
  """

  input_dim: int = REQUIRED
  output_dim: int = REQUIRED
  conv_params: Config = sub_config_field(default_conv)
  kernel_size: int = 3
  stride: int = 1
  negative_slope: float = 0.4

  def setup(self):
    inner, size = self.output_dim // BOTTLENECK, self.kernel_size
    shapes = [
      ((1, 1, self.input_dim, inner), 1),
      ((size, size, inner, inner), self.stride),
      ((1, 1, inner, self.output_dim), 1),
    ]
    body = [
      self.conv_params.clone().set(
        filter_shape=shape, filter_stride=(stride, stride)
      )
      for shape, stride in shapes
    ]
    self.create_children('body', body)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, H, W, I] to [B, H', W', O]."""
    outputs = inputs
    for layer in self.body:
      outputs = tailored_lrelu(self.negative_slope, layer(outputs))
    return self.shard(outputs, self.activation_split_dims_mapping.out)
