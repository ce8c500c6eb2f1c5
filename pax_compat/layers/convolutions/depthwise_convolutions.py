"""Depthwise convolutions along time.

Shapes: B batch, T time, I input channels, M channel multiplier, K kernel size,
D model dims, N heads, H dims of a head.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layer_core.sharding import SplitDimsMapping, axes_of
from pax_compat.layers.paddings import apply_paddings


def effective_kernel_size(size: int, dilation: int) -> int:
  """Returns the number of positions that a dilated kernel spans."""
  return dilation * (size - 1) + 1


class BaseDepthwiseConv1D(base_layer.BaseLayer):
  """Base class of the depthwise convolutions of [B, T, I].

  Attributes:
    filter_shape: K, I and M.
    bias: whether there is a bias.
    bias_init: initializer of the bias.
    is_causal: whether outputs do not depend on later positions. Requires
      'SAME'.
    padding: 'SAME' pads the input with zeros, so that there is an output for
      each input; 'VALID' does not pad.
    use_2d_conv_weight_shape: whether the weight has the shape [K, 1, I * M, 1],
      as in some checkpoints, instead of [K, 1, I * M].
    rhs_dilation_rate: dilation of the kernel.
  """

  filter_shape: Sequence[int] = REQUIRED
  bias: bool = False
  bias_init: WeightInit = WeightInit.Constant(0.0)
  is_causal: bool = False
  padding: str = 'SAME'
  use_2d_conv_weight_shape: bool = False
  rhs_dilation_rate: int = 1

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> jax.Array:
    """Maps `inputs` [B, T, I] to [B, T, I * M].

    Args:
      inputs: [B, T, I].
      paddings: [B, T]; inputs at padded positions are taken as 0.
    """
    raise NotImplementedError(type(self).__name__)


class DepthwiseConv1D(BaseDepthwiseConv1D):
  """Depthwise convolution of [B, T, I]."""

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights over the mesh.

    Attributes:
      him: mapping of K, I and M. If M is split too, its axes follow those of I
        in the weight's dimension of size I * M.
    """

    him: SplitDimsMapping = None

  def setup(self):
    self._check_fields()
    size, inputs, multiplier = self.filter_shape
    shape, mapping = [size, 1, inputs * multiplier], self._mapping()
    if self.use_2d_conv_weight_shape:
      shape, mapping = [*shape, 1], mapping and [*mapping, None]
    self.create_variable(
      'w', WeightHParams(shape, tensor_split_dims_mapping=mapping)
    )
    if self.bias:
      mapping = mapping and mapping[2:3]
      self.create_variable(
        'b',
        WeightHParams(
          shape[2:3], self.bias_init, tensor_split_dims_mapping=mapping
        ),
      )

  def _check_fields(self):
    if len(self.filter_shape) != 3 or any(n < 1 for n in self.filter_shape):
      raise errors.UserError(
        f'DepthwiseConv1D.filter_shape is {list(self.filter_shape)}; expected'
        ' kernel size, input channels and channel multiplier'
      )
    errors.check_least(self, 1, 'rhs_dilation_rate')
    errors.check_choice(self, 'padding', ('SAME', 'VALID'))
    if self.is_causal and self.padding == 'VALID':
      raise errors.UserError(
        "DepthwiseConv1D.is_causal requires padding='SAME'"
      )
    if self.weight_split_dims_mapping.wt is not None:
      raise errors.UserError(
        'DepthwiseConv1D.weight_split_dims_mapping.wt is'
        f' {list(self.weight_split_dims_mapping.wt)}; expected him, with an'
        ' entry each for kernel size, input channels and multiplier'
      )

  def _mapping(self) -> list | None:
    """Returns the mapping of a weight [K, 1, I * M]."""
    him = self.weight_split_dims_mapping.him
    if him is None:
      return None
    if len(him) != 3:
      raise errors.UserError(
        f'DepthwiseConv1D: the split mapping him is {list(him)}; expected one'
        ' entry for each of kernel size, input channels and multiplier'
      )
    height, *channels = him
    axes = [axes_of(entry) for entry in channels]
    return [height, None, tuple(sum(axes, ())) or None]

  def get_w(self) -> jax.Array:
    """Returns the kernel, [K, 1, I * M]; a subclass may change it."""
    w = self.theta.w
    return w[..., 0] if self.use_2d_conv_weight_shape else w

  def __call__(self, inputs, paddings=None):
    if paddings is not None:
      inputs = apply_paddings(inputs, paddings)
    padding = self.padding
    if self.is_causal:
      size = effective_kernel_size(self.filter_shape[0], self.rhs_dilation_rate)
      padding = [(size - 1, 0)]
    outputs = jax.lax.conv_general_dilated(
      inputs.astype(self.compute_dtype),
      self.get_w(),
      window_strides=(1,),
      padding=padding,
      rhs_dilation=(self.rhs_dilation_rate,),
      dimension_numbers=('NHC', 'HIO', 'NHC'),
      feature_group_count=self.filter_shape[1],
    )
    if self.bias:
      outputs = outputs + self.theta.b
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class CausalDepthwiseConv1D(base_layer.BaseLayer):
  """Causal depthwise convolution, as in https://arxiv.org/abs/2109.08668.

  Its weights, `dconv_0` for the position itself, `dconv_1` for the one before
  and so on, have the shape `hidden_dims`.

  Attributes:
    kernel_size: K.
    hidden_dims: last dimensions of the inputs: D or a sequence, such as (N, H).
  """

  kernel_size: int = 3
  hidden_dims: int | Sequence[int] = REQUIRED

  def setup(self):
    dims = self.hidden_dims
    dims = [dims] if isinstance(dims, int) else list(dims)
    if self.kernel_size < 1 or not dims or any(dim < 1 for dim in dims):
      raise errors.UserError(
        f'CausalDepthwiseConv1D: kernel_size is {self.kernel_size} and'
        f' hidden_dims {self.hidden_dims}; expected at least 1'
      )
    for i in range(self.kernel_size):
      init = 0.5 if i == 0 else 0.5 / self.kernel_size
      mapping = self.weight_split_dims_mapping.wt
      weight = WeightHParams(
        dims, WeightInit.Constant(init), tensor_split_dims_mapping=mapping
      )
      self.create_variable(f'dconv_{i}', weight)

  def __call__(
    self,
    inputs: jax.Array,
    axis: int = 1,
    segment_pos: jax.Array | None = None,
  ) -> jax.Array:
    """Returns `inputs` convolved along time.

    Args:
      inputs: [B, T, ...], or [T, B, ...].
      axis: the dimension of time, 1 or 0.
      segment_pos: [B, T], positions within the segments of packed rows, which
        do not see each other; None for a single segment.
    """
    self._check_axis(axis)
    length = inputs.shape[axis]
    outputs = inputs * self.theta.dconv_0
    for i in range(1, min(self.kernel_size, length)):
      earlier = jax.lax.slice_in_dim(inputs, 0, length - i, axis=axis)
      widths = [(0, 0)] * inputs.ndim
      widths[axis] = (i, 0)
      seen = jnp.pad(earlier, widths) * self.theta_of(i)
      if segment_pos is not None:
        within = segment_pos >= i
        within = within if axis == 1 else within.T
        within = jnp.reshape(within, [*within.shape, *[1] * (inputs.ndim - 2)])
        seen = jnp.where(within, seen, 0)
      outputs = outputs + seen
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def extend_step(
    self,
    inputs: jax.Array,
    axis: int,
    step: int | jax.Array,
    segment_pos: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the convolution [B, ...] at one position in time.

    Args:
      inputs: [B, T, ...] or [T, B, ...], valid at least up to the position.
      axis: the dimension of time, 1 or 0.
      step: [], the position.
      segment_pos: [B], the position within the segment; None takes `step`.
    """
    self._check_axis(axis)
    position = jnp.asarray(step if segment_pos is None else segment_pos)

    def at(time):
      time = jnp.maximum(time, 0)
      return jax.lax.dynamic_index_in_dim(inputs, time, axis, keepdims=False)

    outputs = at(step) * self.theta.dconv_0
    shape = [*position.shape, *[1] * (outputs.ndim - position.ndim)]
    for i in range(1, self.kernel_size):
      within = jnp.reshape(position >= i, shape)
      seen = at(step - i) * self.theta_of(i)
      outputs = outputs + jnp.where(within, seen, 0)
    return outputs

  def theta_of(self, distance: int) -> jax.Array:
    """Returns the weight for the position `distance` steps before."""
    return self.get_theta(f'dconv_{distance}')

  def _check_axis(self, axis: int):
    if axis not in (0, 1):
      raise errors.UserError(
        f'CausalDepthwiseConv1D: time is dimension {axis}; expected 0 or 1'
      )
