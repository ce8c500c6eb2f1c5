"""MobileNetV2, https://arxiv.org/abs/1801.04381.

Shapes: B batch, H height, W width, C channels of the image, D output channels.
"""

from collections.abc import Iterator, Sequence

import jax

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightInit
from pax_compat.config import Config, field_names, sub_config_field
from pax_compat.layers import activations, linears, poolings
from pax_compat.layers.convolutions import conv
from pax_compat.layers.graph import containers
from pax_compat.layers.mobilenet import blocks as blocks_lib
from pax_compat.layers.normalizations import norm_layers

# Channels of the first convolution, before the multiplier.
_ENTRY_CHANNELS = 32


def _default_conv() -> Config:
  return conv.ConvBNAct.config(
    activation_tpl=activations.ReLU6.config(),
    batch_norm_tpl=norm_layers.BatchNorm.config(decay=0.9),
    params_init=WeightInit.GaussianSqrtFanOut(1.4141),
  )


def divisible(size: float, divisor: int, least: int) -> int:
  """Returns the nearest multiple of `divisor` that is at most 10% smaller.

  >>> divisible(32 * 0.35, 8, 8), divisible(24 * 0.75, 8, 8)
  (16, 24)

  Args:
    size: a number of channels.
    divisor: what divides the result.
    least: a lower bound of the result.
  """
  rounded = max(least, int(size + divisor / 2) // divisor * divisor)
  return rounded + divisor if rounded < 0.9 * size else rounded


class MobileNet(base_layer.BaseLayer):
  """MobileNetV2; the defaults are those of the paper, without classes.

  A convolution, inverted residual blocks, a 1x1 convolution, and a mean over
  height and width.

  Attributes:
    conv_params: template of all convolutions.
    block_params: template of all blocks.
    expansions: expansion of each block.
    strides: stride of each block.
    channels: output channels of each block.
    output_channels: D.
    num_classes: if positive, a dense layer follows, with as many outputs.
    entryflow_conv_kernel: height, width and C of the first convolution.
    entryflow_conv_stride: its stride in height and width.
    output_spatial_pooling_params: template of the pooling at the end, or None.
    predict_params: template of the dense layer.
    multiplier: factor on all numbers of channels; D does not become smaller.
    divisible_by: what divides the numbers of channels after that.
    min_depth: lower bound of the channels of the first and last convolution.
  """

  conv_params: Config = sub_config_field(_default_conv)
  block_params: Config = sub_config_field(blocks_lib.InvertedResidualBlock)
  # Of 17 blocks in groups of 1, 2, 3, 4, 3, 3 and 1.
  expansions: Sequence[int] = (1, *[6] * 16)
  strides: Sequence[int] = (1, 2, 1, 2, 1, 1, 2, *[1] * 6, 2, 1, 1, 1)
  channels: Sequence[int] = (
    *(16, 24, 24, 32, 32, 32, 64, 64, 64, 64),
    *(96, 96, 96, 160, 160, 160, 320),
  )
  output_channels: int = 1280
  num_classes: int = 0
  entryflow_conv_kernel: Sequence[int] = (3, 3, 3)
  entryflow_conv_stride: Sequence[int] = (2, 2)
  output_spatial_pooling_params: Config | None = sub_config_field(
    poolings.GlobalPooling, pooling_dims=(1, 2)
  )
  predict_params: Config = sub_config_field(linears.FeedForward)
  multiplier: float = 1.0
  divisible_by: int = 8
  min_depth: int = 8

  def setup(self):
    for field in ('strides', 'channels'):
      if len(getattr(self, field)) != len(self.expansions):
        raise errors.UserError(
          f'MobileNet.{field} has {len(getattr(self, field))} numbers; expected'
          f' {len(self.expansions)}, one for each of the expansions'
        )
    if self.num_classes and self.multiplier > 1:
      raise errors.UserError(
        f'MobileNet: multiplier is {self.multiplier} and num_classes'
        f' {self.num_classes}; with classes, expected a multiplier of at most 1'
      )
    layers = list(self._layers())
    self.create_child('body', containers.Sequential.config(layers=layers))

  def _layers(self) -> Iterator[Config]:
    """Yields the templates of all layers."""
    dim = self._scaled(_ENTRY_CHANNELS, self.min_depth)
    yield self._conv(
      (*self.entryflow_conv_kernel, dim), self.entryflow_conv_stride
    )
    for expansion, stride, channels in zip(
      self.expansions, self.strides, self.channels, strict=True
    ):
      outputs = self._scaled(channels, self.divisible_by)
      yield self._block().set(
        input_dim=dim, output_dim=outputs, expansion=expansion, stride=stride
      )
      dim = outputs
    outputs = self.output_channels
    if self.multiplier > 1:
      outputs = self._scaled(outputs, self.min_depth)
    yield self._conv((1, 1, dim, outputs), (1, 1))
    if self.output_spatial_pooling_params is not None:
      yield self.output_spatial_pooling_params
    if self.num_classes:
      yield self.predict_params.clone().set(
        input_dims=outputs, output_dims=self.num_classes
      )

  def _scaled(self, channels: int, least: int) -> int:
    return divisible(channels * self.multiplier, self.divisible_by, least)

  def _conv(self, shape: tuple[int, ...], stride: Sequence[int]) -> Config:
    return self.conv_params.clone().set(
      filter_shape=shape, filter_stride=tuple(stride)
    )

  def _block(self) -> Config:
    block = self.block_params.clone()
    if 'conv_params' in field_names(block):
      block.conv_params = self.conv_params.clone()
    return block

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the network.

    Args:
      inputs: images, [B, H, W, C].

    Returns:
      [B, D], or [B, num_classes]; without pooling [B, H', W', D].
    """
    outputs = self.body(inputs)
    return self.shard(outputs, self.activation_split_dims_mapping.out)
