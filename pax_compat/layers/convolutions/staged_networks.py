"""What networks for images share that are stages of blocks."""

from collections.abc import Iterator, Sequence

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, field_names
from pax_compat.layers import poolings


class BaseStagedNetwork(base_layer.BaseLayer):
  """Base class of networks of a convolution, a maximum and stages of blocks.

  The maximum is over windows of 3x3.

  Attributes:
    conv_params: template of all convolutions.
    block_params: template of all blocks.
    strides: stride of the first block of each stage.
    channels: output channels of each stage.
    blocks: number of blocks of each stage.
    kernels: kernel size of each stage.
    entryflow_conv_kernel: kernel sizes of the first convolution.
    entryflow_conv_stride: its stride in height and width.
    output_spatial_pooling_params: template of the pooling at the end, or None.
  """

  conv_params: Config = REQUIRED
  block_params: Config = REQUIRED
  strides: Sequence[int] = (1, 2, 2, 2)
  channels: Sequence[int] = (256, 512, 1024, 2048)
  blocks: Sequence[int] = (3, 4, 6, 3)
  kernels: Sequence[int] = (3, 3, 3, 3)
  entryflow_conv_kernel: Sequence[int] = REQUIRED
  entryflow_conv_stride: Sequence[int] = (2, 2)
  output_spatial_pooling_params: Config | None = None

  def create_stages(self, block: Config, input_shape: Sequence[int]):
    """Creates all layers.

    Args:
      block: template of all blocks.
      input_shape: filter height and width, input and output channels of the
        first convolution.
    """
    self._check_stages()
    self.create_child(
      'entryflow_conv',
      self.conv_params.clone(),
      filter_shape=tuple(input_shape),
      filter_stride=tuple(self.entryflow_conv_stride),
    )
    self.create_child(
      'entryflow_maxpool',
      poolings.Pooling.config(window_shape=(3, 3), window_stride=(2, 2)),
    )
    dim = input_shape[-1]
    for stage, name, stride in self._blocks():
      outputs = self.channels[stage]
      tpl = block.clone()
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
          f'{type(self).__name__}.{field} is {list(getattr(self, field))};'
          f' expected {stages} numbers, one for each of the strides'
        )

  def _blocks(self) -> Iterator[tuple[int, str, int]]:
    """Yields stage, name and stride of each block."""
    for stage, number in enumerate(self.blocks):
      for i in range(number):
        stride = 1 if i else self.strides[stage]
        yield stage, f'stage_{stage}_block_{i}', stride
