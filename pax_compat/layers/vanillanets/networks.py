"""Deep networks without shortcuts and without batch normalisation.

https://openreview.net/forum?id=U0k7XNTiFEq

Shapes: B batch, H height, W width, D output channels.
"""

from collections.abc import Iterator, Sequence

import jax

from pax_compat import base_layer, errors
from pax_compat.config import Config, field_names, sub_config_field
from pax_compat.layers import poolings
from pax_compat.layers.vanillanets import blocks as blocks_lib

_IMAGE_CHANNELS = 3


class VanillaNet(base_layer.BaseLayer):
  """A network like `ResNet`; the defaults are those of 50 layers.

  Attributes:
    conv_params: template of all convolutions.
    block_params: template of all blocks.
    strides: stride of the first block of each stage.
    channels: output channels of each stage.
    blocks: number of blocks of each stage.
    kernels: kernel size of each stage.
    entryflow_conv_kernel: height and width of the first convolution.
    entryflow_conv_stride: its stride in height and width.
    output_spatial_pooling_params: template of the pooling at the end, or None.
      As in Pax, its `pooling_dims` have to be set.
    negative_slope: slope of the leaky ReLUs where they are negative.
  """

  conv_params: Config = sub_config_field(blocks_lib.default_conv)
  block_params: Config = sub_config_field(blocks_lib.VanillaBlock)
  strides: Sequence[int] = (1, 2, 2, 2)
  channels: Sequence[int] = (256, 512, 1024, 2048)
  blocks: Sequence[int] = (3, 4, 6, 3)
  kernels: Sequence[int] = (3, 3, 3, 3)
  entryflow_conv_kernel: Sequence[int] = (7, 7)
  entryflow_conv_stride: Sequence[int] = (2, 2)
  output_spatial_pooling_params: Config | None = sub_config_field(
    poolings.GlobalPooling
  )
  negative_slope: float = 0.4

  @classmethod
  def HParamsVanillaNet5(cls) -> Config:
    """Returns a config of one block, for tests."""
    return cls.config(strides=[1], channels=[16], blocks=[1], kernels=[1])

  @classmethod
  def HParamsVanillaNet50(cls) -> Config:
    """Returns the config of 50 layers."""
    return cls.config()

  @classmethod
  def HParamsVanillaNet101(cls) -> Config:
    """Returns the config of 101 layers."""
    return cls.config(blocks=[3, 4, 23, 3])

  @classmethod
  def HParamsVanillaNet152(cls) -> Config:
    """Returns the config of 152 layers."""
    return cls.config(blocks=[3, 8, 36, 3])

  def setup(self):
    for field in ('channels', 'blocks', 'kernels'):
      if len(getattr(self, field)) != len(self.strides):
        raise errors.UserError(
          f'VanillaNet.{field} is {list(getattr(self, field))}; expected'
          f' {len(self.strides)} numbers, one for each of the strides'
        )
    dim = self.channels[0] // blocks_lib.BOTTLENECK
    self.create_child(
      'entryflow_conv',
      self.conv_params.clone(),
      filter_shape=(*self.entryflow_conv_kernel, _IMAGE_CHANNELS, dim),
      filter_stride=tuple(self.entryflow_conv_stride),
    )
    self.create_child(
      'entryflow_maxpool',
      poolings.Pooling.config(window_shape=(3, 3), window_stride=(2, 2)),
    )
    for stage, name, stride in self._blocks():
      outputs = self.channels[stage]
      tpl = self.block_params.clone().set(negative_slope=self.negative_slope)
      if 'conv_params' in field_names(tpl):
        tpl.conv_params = self.conv_params.clone()
      sizes = dict(kernel_size=self.kernels[stage], stride=stride)
      self.create_child(name, tpl, input_dim=dim, output_dim=outputs, **sizes)
      dim = outputs
    if self.output_spatial_pooling_params is not None:
      pooling = self.output_spatial_pooling_params
      self.create_child('output_spatial_pooling', pooling)

  def _blocks(self) -> Iterator[tuple[int, str, int]]:
    """Yields stage, name and stride of each block."""
    for stage, number in enumerate(self.blocks):
      for i in range(number):
        stride = 1 if i else self.strides[stage]
        yield stage, f'stage_{stage}_block_{i}', stride

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the network.

    Args:
      inputs: images, [B, H, W, 3].

    Returns:
      [B, D] after pooling over height and width, [B, H', W', D] without.
    """
    slope = self.negative_slope
    outputs = blocks_lib.tailored_lrelu(slope, self.entryflow_conv(inputs))
    outputs, _ = self.entryflow_maxpool(outputs)
    for _, name, _ in self._blocks():
      outputs = getattr(self, name)(outputs)
    if self.output_spatial_pooling_params is not None:
      outputs = self.output_spatial_pooling(outputs)
    return self.shard(outputs, self.activation_split_dims_mapping.out)
