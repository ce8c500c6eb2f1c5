"""Transposed convolutions, which enlarge images.

Shapes: B batch, H height, W width, I input channels, O output channels.
"""

from collections.abc import Sequence

import jax

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED


class TransposedConv2D(base_layer.BaseLayer):
  """The transposed convolution of [B, H, W, I], without a bias.

  It is the gradient, with respect to its input, of a convolution with padding
  'SAME' and the same filter: each position of the input adds a multiple of the
  filter to the output.

  Attributes:
    filter_shape: height and width of the kernel, then O and I.
    filter_stride: by which height and width grow.
    kernel_init: initializer of the kernel; None takes `params_init`.
  """

  filter_shape: Sequence[int] = REQUIRED
  filter_stride: Sequence[int] = (1, 1)
  kernel_init: WeightInit | None = None

  def setup(self):
    for name, length in (('filter_shape', 4), ('filter_stride', 2)):
      value = tuple(getattr(self, name))
      if len(value) != length or min(value) < 1:
        raise errors.UserError(
          f'{type(self).__name__}.{name} is {value}; expected {length} numbers'
          ' of at least 1'
        )
    self.create_variable(
      'w',
      WeightHParams(
        self.filter_shape,
        self.kernel_init,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns [B, H * stride, W * stride, O].

    Args:
      inputs: [B, H, W, I].

    Raises:
      UserError: the inputs have another rank or another number of channels.
    """
    channels = self.filter_shape[-1]
    if inputs.ndim != 4 or inputs.shape[-1] != channels:
      raise errors.UserError(
        f'{type(self).__name__}: inputs of shape {list(inputs.shape)}; expected'
        f' 4 dimensions, the last one of {channels}'
      )
    outputs = jax.lax.conv_transpose(
      inputs.astype(self.compute_dtype),
      self.theta.w,
      tuple(self.filter_stride),
      'SAME',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      transpose_kernel=True,
    )
    return self.shard(outputs, self.activation_split_dims_mapping.out)
