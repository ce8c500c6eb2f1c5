"""Residual blocks of convolutions, https://arxiv.org/abs/1512.03385.

Shapes: B batch, H height, W width, I input channels, O output channels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations, stochastics
from pax_compat.layers.convolutions import conv

# The input channels of a network's first block, as a fraction of its outputs.
BOTTLENECK = 4


class ResNetBlock(base_layer.BaseLayer):
  """A bottleneck: a 1x1, a KxK and a 1x1 convolution, beside a shortcut.

  The shortcut is a 1x1 convolution where the shapes of input and output differ.

  Attributes:
    input_dim: I.
    output_dim: O; the convolution in the middle has a fourth of it.
    conv_params: template of all convolutions.
    kernel_size: K.
    stride: stride of the KxK convolution in height and width.
    activation_tpl: activation of the inner convolutions and of the sum.
    residual_droppath_prob: probability that training drops the convolutions of
      an example.
    zero_init_residual: whether the scale of the last batch normalisation is
      initially 0, so that the block begins as its shortcut.
  """

  input_dim: int = REQUIRED
  output_dim: int = REQUIRED
  conv_params: Config = sub_config_field(conv.ConvBNAct)
  kernel_size: int = 3
  stride: int = 1
  activation_tpl: Config = sub_config_field(activations.ReLU)
  residual_droppath_prob: float = 0.0
  zero_init_residual: bool = False

  def setup(self):
    last_fields = self._last_norm()
    last = len(self._convolutions()) - 1
    self.create_children(
      'body',
      [
        self._conv(shape, stride, i < last, last_fields if i == last else {})
        for i, (shape, stride) in enumerate(self._convolutions())
      ],
    )
    if not self._keeps_shape:
      shape = 1, 1, self.input_dim, self.output_dim
      self.create_child('shortcut', self._conv(shape, self.stride, False, {}))
    if self.residual_droppath_prob:
      survives = 1.0 - self.residual_droppath_prob
      path = stochastics.StochasticResidual.config(survival_prob=survives)
      self.create_child('residual_droppath', path)
    self.create_child('postact', self.activation_tpl.clone())

  def _convolutions(self) -> Sequence[tuple[tuple[int, ...], int]]:
    """Returns filter shape and stride of each convolution."""
    size, inner = self.kernel_size, self.output_dim // BOTTLENECK
    return [
      ((1, 1, self.input_dim, inner), 1),
      ((size, size, inner, inner), self.stride),
      ((1, 1, inner, self.output_dim), 1),
    ]

  def _conv(
    self,
    shape: tuple[int, ...],
    stride: int,
    activated: bool,
    fields: Mapping[str, Any],
  ) -> Config:
    activation = self.activation_tpl if activated else None
    return self.conv_params.clone().set(
      filter_shape=shape,
      filter_stride=(stride, stride),
      activation_tpl=(activation or activations.Identity.config()).clone(),
      **fields,
    )

  def _last_norm(self) -> dict[str, Config]:
    if not self.zero_init_residual:
      return {}
    if self.conv_params.batch_norm_tpl is None:
      raise errors.UserError(
        f'{type(self).__name__}.zero_init_residual requires'
        ' conv_params.batch_norm_tpl; it is None'
      )
    # The scale is 1 + gamma.
    norm = self.conv_params.batch_norm_tpl.clone()
    return {'batch_norm_tpl': norm.set(gamma_init=WeightInit.Constant(-1.0))}

  @property
  def _keeps_shape(self) -> bool:
    return self.input_dim == self.output_dim and self.stride == 1

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, H, W, I] to [B, H', W', O]."""
    outputs = inputs
    for layer in self.body:
      outputs = layer(outputs)
    if not self._keeps_shape:
      inputs = self.shortcut(inputs)
    if self.residual_droppath_prob:
      outputs = self.residual_droppath(inputs, outputs)
    else:
      outputs = inputs + outputs
    out = self.activation_split_dims_mapping.out
    return self.shard(self.postact(outputs), out)


class ResNetBasicBlock(ResNetBlock):
  """Two KxK convolutions beside a shortcut, as in ResNet-18 and ResNet-34.

  Attributes:
    output_dim: O, also of the first convolution.
    stride: stride of the first convolution.
    zero_init_residual: must be False, as in Pax, which ignores it here.
  """

  def setup(self):
    if self.zero_init_residual:
      raise errors.UserError(
        'ResNetBasicBlock.zero_init_residual is not supported; use ResNetBlock'
      )
    super().setup()

  def _convolutions(self):
    size = self.kernel_size
    return [
      ((size, size, self.input_dim, self.output_dim), self.stride),
      ((size, size, self.output_dim, self.output_dim), 1),
    ]
