"""Deep networks without shortcuts and without batch normalisation.

https://openreview.net/forum?id=U0k7XNTiFEq

Shapes: B batch, H height, W width, D output channels.
"""

from collections.abc import Sequence

import jax

from pax_compat.config import Config, sub_config_field
from pax_compat.layers import poolings
from pax_compat.layers.convolutions import staged_networks
from pax_compat.layers.vanillanets import blocks as blocks_lib

_IMAGE_CHANNELS = 3


class VanillaNet(staged_networks.BaseStagedNetwork):
  """A network like `ResNet`; the defaults are those of 50 layers.

  Attributes:
    conv_params: template of all convolutions.
    block_params: template of all blocks.
    entryflow_conv_kernel: height and width of the first convolution.
    output_spatial_pooling_params: template of the pooling at the end, or None.
      As in Pax, its `pooling_dims` have to be set.
    negative_slope: slope of the leaky ReLUs where they are negative.
  """

  conv_params: Config = sub_config_field(blocks_lib.default_conv)
  block_params: Config = sub_config_field(blocks_lib.VanillaBlock)
  entryflow_conv_kernel: Sequence[int] = (7, 7)
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
    dim = self.channels[0] // blocks_lib.BOTTLENECK
    block = self.block_params.clone().set(negative_slope=self.negative_slope)
    kernel = *self.entryflow_conv_kernel, _IMAGE_CHANNELS
    self.create_stages(block, [*kernel, dim])

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
