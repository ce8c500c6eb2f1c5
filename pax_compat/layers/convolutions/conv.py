"""Convolutions, and blocks of convolution, normalisation and activation.

Shapes: B batch, T time, H height, W width, I input channels, O output channels.
In spectrograms H is time and W is frequency.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations
from pax_compat.layers.convolutions.depthwise_convolutions import (
  effective_kernel_size,
)
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.paddings import apply_paddings


class BaseConv(base_layer.BaseLayer):
  """Base class of the convolutions with any number of spatial dimensions.

  If the inputs have several times the filter's input channels, the convolution
  is grouped.

  Attributes:
    filter_shape: kernel size of each spatial dimension, then I and O.
    filter_stride: stride of each spatial dimension; None takes 1.
    dilations: dilation of each spatial dimension; None takes 1.
    bias: whether there is a bias.
    bias_init: initializer of the bias.
    kernel_init: initializer of the kernel; None takes `params_init`.
    padding: 'SAME' pads the input with zeros, so that every stride gives an
      output; 'VALID' does not pad.
    tf_equivalent_padding: whether 'SAME' distributes the zeros around a strided
      input as TensorFlow does, depending on the input's size; else as without
      strides.
    is_causal: whether outputs do not depend on later positions in the first
      spatial dimension. Requires 'SAME' and `tf_equivalent_padding`.
    weight_norm_tpl: normalisation of the kernel.
  """

  filter_shape: Sequence[int] = REQUIRED
  filter_stride: Sequence[int] | None = None
  dilations: Sequence[int] | None = None
  bias: bool = False
  bias_init: WeightInit = WeightInit.Constant(0.0)
  kernel_init: WeightInit | None = None
  padding: str = 'SAME'
  tf_equivalent_padding: bool = False
  is_causal: bool = False
  weight_norm_tpl: Config = sub_config_field(norm_layers.IdentityNorm)

  # One letter for each spatial dimension.
  spatial_dims = ''

  @classmethod
  def HParamsDepthwise(
    cls,
    *,
    kernel_shape: Sequence[int],
    in_channels: int,
    channel_multipliers: int = 1,
    **fields,
  ) -> Config:
    """Returns a config of a depthwise convolution.

    Args:
      kernel_shape: kernel size of each spatial dimension.
      in_channels: I.
      channel_multipliers: O / I.
      **fields: further fields.

    Raises:
      UserError: `filter_shape` is among the further fields, or `kernel_shape`
        has the wrong number of dimensions.
    """
    if 'filter_shape' in fields:
      raise errors.UserError(
        f'{cls.__name__}.HParamsDepthwise computes filter_shape; do not set it'
      )
    _check_length(cls, 'kernel_shape', kernel_shape, len(cls.spatial_dims))
    outputs = in_channels * channel_multipliers
    return cls.config(filter_shape=(*kernel_shape, 1, outputs), **fields)

  @property
  def strides(self) -> tuple[int, ...]:
    """The stride in each spatial dimension."""
    return tuple(self.filter_stride or [1] * len(self.spatial_dims))

  @property
  def kernel_spans(self) -> list[int]:
    """Dilated kernel size of each spatial dimension."""
    sizes = self.filter_shape[:-2]
    return list(map(effective_kernel_size, sizes, self._dilations))

  @property
  def _dilations(self) -> tuple[int, ...]:
    return tuple(self.dilations or [1] * len(self.spatial_dims))

  def setup(self):
    self.check_dimensions()
    mapping = self.weight_split_dims_mapping.wt
    self.create_variable(
      'w',
      WeightHParams(
        self.filter_shape,
        self.kernel_init,
        tensor_split_dims_mapping=mapping,
      ),
    )
    if self.bias:
      self.create_variable(
        'b',
        WeightHParams(
          self.filter_shape[-1:],
          self.bias_init,
          tensor_split_dims_mapping=None if mapping is None else mapping[-1:],
        ),
      )
    outputs = self.filter_shape[-1]
    self.create_child('weight_norm', self.weight_norm_tpl, dim=outputs)

  def check_dimensions(self):
    """Raises a `UserError` if a field does not fit; called by `setup`."""
    name, rank = type(self).__name__, len(self.spatial_dims)
    _check_length(type(self), 'filter_shape', self.filter_shape, rank + 2)
    for field in ('filter_stride', 'dilations'):
      value = getattr(self, field)
      if value is not None:
        _check_length(type(self), field, value, rank)
    errors.check_choice(self, 'padding', ('SAME', 'VALID'))
    if self.is_causal and not self.tf_equivalent_padding:
      raise errors.UserError(f'{name}.is_causal requires tf_equivalent_padding')
    if self.is_causal and self.padding == 'VALID':
      raise errors.UserError(f"{name}.is_causal requires padding='SAME'")

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns the convolution [B, ..., O] of `inputs` [B, ..., I].

    Args:
      inputs: [B, spatial dimensions, I or a multiple of I].

    Raises:
      UserError: the channels of inputs and filter do not match.
    """
    return self.convolve(inputs)

  def convolve(self, inputs: jax.Array) -> jax.Array:
    """Returns the convolution alone, for blocks that add further layers."""
    spatial = self.spatial_dims
    groups = self._groups(inputs.shape)
    outputs = self.run_convolution(
      inputs.astype(self.compute_dtype),
      self.theta.w,
      self._pads(inputs.shape[1:-1]),
      dimension_numbers=(f'N{spatial}C', f'{spatial}IO', f'N{spatial}C'),
      feature_group_count=groups,
    )
    if self.bias:
      outputs = outputs + self.theta.b
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def run_convolution(
    self, inputs: jax.Array, weight: jax.Array, padding, **settings
  ) -> jax.Array:
    """Returns the convolution with the kernel; a subclass can replace it.

    Args:
      inputs: as in `convolve`.
      weight: the kernel, before it is normalised.
      padding: see `jax.lax.conv_general_dilated`.
      **settings: likewise, without strides and dilations.
    """
    return jax.lax.conv_general_dilated(
      inputs,
      self.weight_norm(weight),
      window_strides=self.strides,
      padding=padding,
      rhs_dilation=self._dilations,
      **settings,
    )

  def _groups(self, shape: Sequence[int]) -> int:
    name = type(self).__name__
    if len(shape) != len(self.spatial_dims) + 2:
      raise errors.UserError(
        f'{name}: inputs of shape {list(shape)}; expected'
        f' {len(self.spatial_dims) + 2} dimensions'
      )
    channels, (inputs, outputs) = shape[-1], self.filter_shape[-2:]
    if channels % inputs or outputs % (channels // inputs):
      raise errors.UserError(
        f'{name}: inputs of {channels} channels do not match the filter_shape'
        f' {list(self.filter_shape)}; expected a multiple of {inputs}, whose'
        f' quotient divides {outputs}'
      )
    return channels // inputs

  def _pads(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the padding of inputs of the given spatial sizes."""
    spans = self.kernel_spans
    if self.padding == 'VALID':
      return [(0, 0)] * len(spans)
    if not self.tf_equivalent_padding:
      return [((span - 1) // 2, span // 2) for span in spans]
    if self.is_causal:
      others = [((span - 1) // 2, span // 2) for span in spans[1:]]
      return [(spans[0] - 1, 0), *others]
    return list(jax.lax.padtype_to_pads(sizes, spans, self.strides, 'SAME'))


def _check_length(layer: type, field: str, value: Sequence[int], length: int):
  is_list = isinstance(value, Sequence)
  if not is_list or len(value) != length or any(size < 1 for size in value):
    raise errors.UserError(
      f'{layer.__name__}.{field} is {list(value) if is_list else value};'
      f' expected {length} numbers of at least 1'
    )


class Conv1D(BaseConv):
  """Convolution of [B, T, I]; its filter has the shape [T, I, O]."""

  spatial_dims = 'H'


class Conv2D(BaseConv):
  """Convolution of [B, H, W, I]; its filter has the shape [H, W, I, O]."""

  spatial_dims = 'HW'


class Conv3D(BaseConv):
  """Convolution of [B, T, H, W, I]; its filter is [T, H, W, I, O]."""

  spatial_dims = 'DHW'


class ConvBNAct(Conv2D):
  """A convolution, a batch normalisation and an activation.

  Attributes:
    batch_norm_tpl: normalisation of the O channels, or None.
    activation_tpl: the activation.
  """

  batch_norm_tpl: Config | None = sub_config_field(norm_layers.BatchNorm)
  activation_tpl: Config = sub_config_field(activations.ReLU)

  def setup(self):
    super().setup()
    if self.batch_norm_tpl is not None:
      outputs = self.filter_shape[-1]
      self.create_child('bn', self.batch_norm_tpl, dim=outputs)
    self.create_child('activation', self.activation_tpl)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, H, W, I] to [B, H', W', O]."""
    return self._normalise_and_activate(self.convolve(inputs), None)

  def _normalise_and_activate(
    self, outputs: jax.Array, paddings: jax.Array | None
  ) -> jax.Array:
    if self.batch_norm_tpl is not None:
      outputs = self.bn(outputs, paddings)
    return self.activation(outputs)


class ConvBNActWithPadding(ConvBNAct):
  """A convolution, a batch normalisation and an activation over padded time.

  Padded positions affect neither others nor the statistics of the batch. The
  output is zero there, except with padding 'SAME' without a stride in time: it
  is left as it is, as in Pax.

  Attributes:
    compat_with_lingvo: whether with a stride in time an output is padded if any
      position that the stride covers is, as in Lingvo; else if the first is.
      Padded outputs are always zero then.
  """

  compat_with_lingvo: bool = False

  def check_dimensions(self):
    super().check_dimensions()
    if not self.compat_with_lingvo:
      return
    if self.padding == 'VALID' or any(d > 1 for d in self._dilations):
      raise errors.UserError(
        f'{type(self).__name__}.compat_with_lingvo requires no dilations and'
        " padding='SAME'"
      )

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Applies the block.

    Args:
      inputs: [B, H, W, I], where H is time.
      paddings: [B, H].

    Returns:
      The outputs [B, H', W', O] and their paddings [B, H']. With padding
      'VALID', an output is padded if all inputs of its kernel are.
    """
    outputs = self.convolve(apply_paddings(inputs, paddings))
    paddings = self._output_paddings(paddings, outputs.shape[1])
    outputs = self._normalise_and_activate(outputs, paddings)
    keeps_time = self.padding == 'SAME' and self.strides[0] == 1
    if self.compat_with_lingvo or not keeps_time:
      outputs = apply_paddings(outputs, paddings)
    return outputs, paddings

  def _output_paddings(self, paddings: jax.Array, length: int) -> jax.Array:
    """Returns the paddings [B, H'] of `length` outputs."""
    stride = self.strides[0]
    if self.padding == 'VALID':
      first = jnp.arange(length)[:, None] * stride
      seen = first + jnp.arange(self.filter_shape[0]) * self._dilations[0]
      return jnp.min(paddings[:, seen], axis=-1)
    if not self.compat_with_lingvo:
      return paddings[:, ::stride]
    last = paddings[:, stride - 1 :: stride]
    missing = length - last.shape[1]
    return jnp.pad(last, [(0, 0), (0, missing)], constant_values=1)
