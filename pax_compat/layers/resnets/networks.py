"""Residual networks for images, https://arxiv.org/abs/1512.03385.

Shapes: B batch, H height, W width, C channels of the image, D output channels.
"""

from collections.abc import Sequence

import jax

from pax_compat.base_layer import WeightInit
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import poolings
from pax_compat.layers.convolutions import conv, staged_networks
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.resnets import blocks as blocks_lib


def _default_conv() -> Config:
  return conv.ConvBNAct.config(
    batch_norm_tpl=norm_layers.BatchNorm.config(decay=0.9),
    params_init=WeightInit.GaussianSqrtFanOut(1.4141),
  )


class ResNet(staged_networks.BaseStagedNetwork):
  """A residual network; the defaults are those of ResNet-50.

  A convolution and a maximum over windows of 3x3, then stages of blocks, then a
  mean over height and width. Each stage has a number of output channels, a
  number of blocks, a kernel size, and a stride of its first block.

  Attributes:
    conv_params: template of all convolutions.
    block_params: template of all blocks.
    entryflow_conv_kernel: height, width and C of the first convolution.
    output_spatial_pooling_params: template of the pooling at the end, or None.
    return_block_features: whether to return the outputs of all stages.
    entry_max_pool: whether there is a maximum after the first convolution.
  """

  conv_params: Config = sub_config_field(_default_conv)
  block_params: Config = sub_config_field(blocks_lib.ResNetBlock)
  entryflow_conv_kernel: Sequence[int] = (7, 7, 3)
  output_spatial_pooling_params: Config | None = sub_config_field(
    poolings.GlobalPooling, pooling_dims=(1, 2)
  )
  return_block_features: bool = False
  entry_max_pool: bool = True

  @classmethod
  def HParamsResNet5(cls) -> Config:
    """Returns a config of one block, for tests."""
    return cls.config(strides=[1], channels=[16], blocks=[1], kernels=[1])

  @classmethod
  def HParamsResNet18(cls) -> Config:
    """Returns the config of ResNet-18."""
    return cls._basic([2, 2, 2, 2])

  @classmethod
  def HParamsResNet34(cls) -> Config:
    """Returns the config of ResNet-34."""
    return cls._basic([3, 4, 6, 3])

  @classmethod
  def HParamsResNet50(cls) -> Config:
    """Returns the config of ResNet-50."""
    return cls.config()

  @classmethod
  def HParamsResNet56(cls) -> Config:
    """Returns the config of Pax's 56 layers."""
    return cls.config(blocks=[3, 3, 9, 3])

  @classmethod
  def HParamsResNet83(cls) -> Config:
    """Returns the config of Pax's 83 layers."""
    return cls.config(blocks=[3, 3, 18, 3])

  @classmethod
  def HParamsResNet101(cls) -> Config:
    """Returns the config of ResNet-101."""
    return cls.config(blocks=[3, 4, 23, 3])

  @classmethod
  def HParamsResNet152(cls) -> Config:
    """Returns the config of ResNet-152."""
    return cls.config(blocks=[3, 8, 36, 3])

  @classmethod
  def _basic(cls, blocks: Sequence[int]) -> Config:
    basic = blocks_lib.ResNetBasicBlock.config()
    channels = 64, 128, 256, 512
    return cls.config(channels=channels, block_params=basic, blocks=blocks)

  def setup(self):
    bottleneck = self.block_params.cls is blocks_lib.ResNetBlock
    dim = self.channels[0] // (blocks_lib.BOTTLENECK if bottleneck else 1)
    self.create_stages(self.block_params, [*self.entryflow_conv_kernel, dim])

  def __call__(self, inputs: jax.Array) -> jax.Array | dict[int, jax.Array]:
    """Applies the network.

    Args:
      inputs: images, [B, H, W, C].

    Returns:
      [B, D] after pooling over height and width, [B, H', W', D] without; with
      `return_block_features` the output of stage i, as item 2 + i.
    """
    outputs, features = self.entryflow_conv(inputs), {}
    if self.entry_max_pool:
      outputs, _ = self.entryflow_maxpool(outputs)
    for stage, name, _ in self._blocks():
      outputs = getattr(self, name)(outputs)
      features[2 + stage] = outputs
    if self.return_block_features:
      return features
    if self.output_spatial_pooling_params is not None:
      outputs = self.output_spatial_pooling(outputs)
    return self.shard(outputs, self.activation_split_dims_mapping.out)
