"""Convolutions and poolings of images, then one vector for each image.

Shapes: B batch, H height, W width, C channels, D output dims.
"""

from collections.abc import Sequence

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import linears, stochastics


class ConvPoolNetwork(base_layer.BaseLayer):
  """Convolutions with a pooling after each, then a fully connected layer.

  As in LeNet-5, http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf.

  Attributes:
    image_shape: (H, W, C).
    conv_tpls: the convolutions, such as `ConvBNAct`.
    pool_tpls: the `Pooling` after each.
    dropout_tpl: dropout after each pooling.
    fc_tpl: the fully connected layer; it sets its dims.
  """

  image_shape: Sequence[int] = REQUIRED
  conv_tpls: Sequence[Config] = REQUIRED
  pool_tpls: Sequence[Config] = REQUIRED
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  fc_tpl: Config = sub_config_field(linears.FeedForward)

  def setup(self):
    if len(self.conv_tpls) != len(self.pool_tpls):
      raise errors.UserError(
        f'ConvPoolNetwork has {len(self.conv_tpls)} conv_tpls and'
        f' {len(self.pool_tpls)} pool_tpls; expected as many'
      )
    for i, (conv, pool) in enumerate(
      zip(self.conv_tpls, self.pool_tpls, strict=True)
    ):
      self.create_child(f'conv_{i}', conv)
      self.create_child(f'pool_{i}', pool)
    self.create_child('dropout', self.dropout_tpl)
    self.create_child('fc', self.fc_tpl)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns a vector [B, D] for each image.

    Args:
      inputs: [B, H, W, C], or of another shape with as many values.

    Raises:
      UserError: it has another number of values.
    """
    size = 1
    for length in self.image_shape:
      size *= length
    if inputs.size != inputs.shape[0] * size:
      raise errors.UserError(
        f'ConvPoolNetwork: inputs of the shape {list(inputs.shape)}; expected'
        f' images of {list(self.image_shape)}'
      )
    outputs = inputs.reshape([-1, *self.image_shape])
    for i in range(len(self.conv_tpls)):
      outputs = getattr(self, f'conv_{i}')(outputs)
      outputs, _ = getattr(self, f'pool_{i}')(outputs)
      outputs = self.dropout(outputs)
    return self.fc(outputs.reshape([len(outputs), -1]))
