"""Residual networks for images, https://arxiv.org/abs/1512.03385.

Shapes: B batch, H height, W width, C channels of the image, D output channels.
"""

from collections.abc import Iterator, Sequence

import jax

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightInit
from pax_compat.config import Config, field_names, sub_config_field
from pax_compat.layers import poolings
from pax_compat.layers.convolutions import conv
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.resnets import blocks as blocks_lib


def _default_conv() -> Config:
  return conv.ConvBNAct.config(
    batch_norm_tpl=norm_layers.BatchNorm.config(decay=0.9),
    params_init=WeightInit.GaussianSqrtFanOut(1.4141),
  )


class ResNet(base_layer.BaseLayer):
  """A residual network; the defaults are those of ResNet-50.

  A convolution and a maximum over windows of 3x3, then stages of blocks, then a
  mean over height and width. Each stage has a number of output channels, a
  number of blocks, a kernel size, and a stride of its first block.

  Attributes:
    conv_params: template of all convolutions.
    block_params: template of all blocks.
    strides: stride of each stage.
    channels: output channels of each stage.
    blocks: number of blocks of each stage.
    kernels: kernel size of each stage.
    entryflow_conv_kernel: height, width and C of the first convolution.
    entryflow_conv_stride: its stride in height and width.
    output_spatial_pooling_params: template of the pooling at the end, or None.
    return_block_features: whether to return the outputs of all stages.
    entry_max_pool: whether there is a maximum after the first convolution.
  """

  conv_params: Config = sub_config_field(_default_conv)
  block_params: Config = sub_config_field(blocks_lib.ResNetBlock)
  strides: Sequence[int] = (1, 2, 2, 2)
  channels: Sequence[int] = (256, 512, 1024, 2048)
  blocks: Sequence[int] = (3, 4, 6, 3)
  kernels: Sequence[int] = (3, 3, 3, 3)
  entryflow_conv_kernel: Sequence[int] = (7, 7, 3)
  entryflow_conv_stride: Sequence[int] = (2, 2)
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
    self._check_stages()
    bottleneck = self.block_params.cls is blocks_lib.ResNetBlock
    dim = self.channels[0] // (blocks_lib.BOTTLENECK if bottleneck else 1)
    self.create_child(
      'entryflow_conv',
      self.conv_params.clone(),
      filter_shape=(*self.entryflow_conv_kernel, dim),
      filter_stride=tuple(self.entryflow_conv_stride),
    )
    self.create_child(
      'entryflow_maxpool',
      poolings.Pooling.config(window_shape=(3, 3), window_stride=(2, 2)),
    )
    for stage, name, stride in self._blocks():
      outputs = self.channels[stage]
      tpl = self.block_params.clone()
      if 'conv_params' in field_names(tpl):
        tpl.conv_params = self.conv_params.clone()
      sizes = dict(kernel_size=self.kernels[stage], stride=stride)
      self.create_child(name, tpl, input_dim=dim, output_dim=outputs, **sizes)
      dim = outputs
    if self.output_spatial_pooling_params is not None:
      pooling = self.output_spatial_pooling_params
      self.create_child('output_spatial_pooling', pooling)

  def _check_stages(self):
    stages = len(self.strides)
    for field in ('channels', 'blocks', 'kernels'):
      if len(getattr(self, field)) != stages:
        raise errors.UserError(
          f'ResNet.{field} is {list(getattr(self, field))}; expected {stages}'
          ' numbers, one for each of the strides'
        )

  def _blocks(self) -> Iterator[tuple[int, str, int]]:
    """Yields stage, name and stride of each block."""
    for stage, number in enumerate(self.blocks):
      for i in range(number):
        stride = 1 if i else self.strides[stage]
        yield stage, f'stage_{stage}_block_{i}', stride

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
