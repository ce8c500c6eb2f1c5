"""Blocks of the encoders, decoders and discriminators of videos.

They are those of MAGVIT-v2, https://arxiv.org/abs/2310.05737: convolutions that
are causal in time, so that the first frame is encoded as an image; group
normalizations of each frame by itself; and StyleGAN's discriminator,
https://arxiv.org/abs/1912.04958, over time, too.

Shapes: B batch, T frames, H height, W width, I input channels, O output
channels, E dims of an embedding.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations, linears
from pax_compat.layers.convolutions import conv
from pax_compat.layers.input_checks import check_last_dim
from pax_compat.layers.normalizations import norm_layers


def depth_to_space(x: jax.Array, t_stride: int, filters: int) -> jax.Array:
  """Returns channels as neighbours in time, height and width.

  Args:
    x: [B, T, H, W, t_stride * 2 * 2 * filters].
    t_stride: number of frames that become of one.
    filters: O.

  Returns:
    [B, t_stride * T, 2 * H, 2 * W, O].

  Raises:
    UserError: the channels of `x` are another number.
  """
  if x.ndim != 5 or x.shape[-1] != 4 * t_stride * filters:
    raise errors.UserError(
      f'depth_to_space: inputs of shape {list(x.shape)}; expected [B, T, H, W,'
      f' {4 * t_stride * filters}], 4 * t_stride * filters'
    )
  b, t, h, w, _ = x.shape
  x = x.reshape(b, t, h, w, t_stride, 2, 2, filters)
  x = x.transpose(0, 1, 4, 2, 5, 3, 6, 7)
  return x.reshape(b, t * t_stride, 2 * h, 2 * w, filters)


class GroupNormSpatial(norm_layers.GroupNorm):
  """Group normalization of each frame by itself.

  Unlike in Pax, any number of dimensions can be ignored, if `input_rank` is
  set, too.

  Attributes:
    num_ignored_dims: number of dimensions after B that share no statistics.
    input_rank: rank of what is normalized, without these dimensions.
  """

  num_ignored_dims: int = 1
  epsilon: float = 1e-6
  input_rank: int = 4

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> jax.Array:
    """Returns `inputs` [B, T, H, W, I] normalized.

    Args:
      inputs: [B, T, H, W, I].
      paddings: ignored; frames do not depend on padded ones.
    """
    del paddings
    one = inputs.reshape(-1, *inputs.shape[1 + self.num_ignored_dims :])
    outputs = super().__call__(one).reshape(inputs.shape)
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def _shard_output(self, outputs):
    return outputs  # B and T are one dimension yet.


class CondNormLayer(base_layer.BaseLayer):
  """A normalization whose scale and bias depend on an embedding.

  As in https://arxiv.org/abs/1703.06868; both are linear in the embedding, at
  each position.

  Attributes:
    group_norm_tpl: the normalization, without weights of its own.
    linear_tpl: the linear layers of scale and bias.
    bias_tpl: their biases.
    emb_dim: E.
    dim: I.
  """

  group_norm_tpl: Config = sub_config_field(GroupNormSpatial)
  linear_tpl: Config = sub_config_field(linears.Linear)
  bias_tpl: Config = sub_config_field(linears.Bias)
  emb_dim: int = REQUIRED
  dim: int = REQUIRED

  def setup(self):
    self.create_child(
      'group_norm',
      self.group_norm_tpl,
      dim=self.dim,
      use_scale=False,
      use_bias=False,
    )
    for name in ('gamma', 'beta'):
      self.create_child(
        f'{name}_linear',
        self.linear_tpl.clone(),
        input_dims=self.emb_dim,
        output_dims=self.dim,
      )
      self.create_child(f'{name}_bias', self.bias_tpl.clone(), dims=self.dim)

  def __call__(self, inputs: jax.Array, emb: jax.Array) -> jax.Array:
    """Returns `inputs` normalized.

    Args:
      inputs: [B, T, H, W, I].
      emb: [B, T, H, W, E].
    """
    gamma = self.gamma_bias(self.gamma_linear(emb))
    beta = self.beta_bias(self.beta_linear(emb))
    outputs = self.group_norm(inputs) * (1.0 + gamma) + beta
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class CausalConv(conv.Conv3D):
  """A 3D convolution whose frames depend on earlier ones only.

  Instead of zeros, the first frame is before the others, and the pixels at the
  edges are around them. Unlike in Pax, dilated kernels get as much of them as
  they span.

  Attributes:
    padding: 'VALID', since the layer pads by itself.
  """

  padding: str = 'VALID'
  filter_stride: Sequence[int] = (1, 1, 1)
  bias: bool = True

  def check_dimensions(self):
    super().check_dimensions()
    errors.check_choice(self, 'padding', ('VALID',))

  def convolve(self, inputs: jax.Array) -> jax.Array:
    self._groups(inputs.shape)  # Checks the shape.
    in_time, *in_space = self.kernel_spans
    pads = [(in_time - 1, 0), *(((n - 1) // 2, n // 2) for n in in_space)]
    return super().convolve(jnp.pad(inputs, [(0, 0), *pads, (0, 0)], 'edge'))


class ResBlock(base_layer.BaseLayer):
  """Two times normalization, activation and convolution, beside a shortcut.

  Attributes:
    input_dim: I.
    output_dim: O.
    use_conv_shortcut: whether the convolution of the shortcut, which there is
      if I and O differ, has the kernel of the others instead of one of size 1.
    norm_layer_tpl: both normalizations.
    conv_layer_tpl: all convolutions, which have no bias.
    activation_tpl: the activation.
  """

  input_dim: int = REQUIRED
  output_dim: int = 128
  use_conv_shortcut: bool = False
  norm_layer_tpl: Config = sub_config_field(GroupNormSpatial)
  conv_layer_tpl: Config = sub_config_field(CausalConv)
  activation_tpl: Config = sub_config_field(activations.Swish)

  def setup(self):
    dims = self.input_dim, self.output_dim
    for i, dim in enumerate(dims):
      self.create_child(f'norm_{i}', self.norm_layer_tpl.clone(), dim=dim)
      self._create_conv(f'conv_{i}', 3, dim)
    if self.input_dim != self.output_dim:
      size = 3 if self.use_conv_shortcut else 1
      self._create_conv('conv_shortcut', size, self.input_dim)
    self.create_child('activation', self.activation_tpl)

  def _create_conv(self, name: str, size: int, inputs: int):
    shape = size, size, size, inputs, self.output_dim
    tpl = self.conv_layer_tpl.clone()
    self.create_child(name, tpl, filter_shape=shape, bias=False)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, H, W, I] to [B, T, H, W, O]."""
    check_last_dim(self, 'input_dim', inputs)
    x = self.conv_0(self.activation(self.norm_0(inputs)))
    x = self.conv_1(self.activation(self.norm_1(x)))
    if self.input_dim != self.output_dim:
      inputs = self.conv_shortcut(inputs)
    return self.shard(x + inputs, self.activation_split_dims_mapping.out)


class BlurPool3D(base_layer.BaseLayer):
  """Blurs each channel and takes every n-th value of it.

  As in https://arxiv.org/abs/1904.11486: the kernel is binomial, and its sum 1.

  Attributes:
    filter_size: its size in each dimension, 2 to 7.
    strides: n in time, height and width.
    padding: 'SAME', with zeros around the inputs as in TensorFlow, or 'VALID'.
  """

  filter_size: int = 3
  strides: tuple[int, int, int] = (2, 2, 2)
  padding: str = 'SAME'

  def setup(self):
    errors.check_choice(self, 'filter_size', range(2, 8))
    errors.check_choice(self, 'padding', ('SAME', 'VALID'))

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, H, W, I] to [B, T / n, H / n, W / n, I]."""
    channels, last = inputs.shape[-1], self.filter_size - 1
    row = jnp.array([math.comb(last, i) / 2**last for i in range(last + 1)])
    kernel = jnp.einsum('i,j,k->ijk', row, row, row)[..., None, None]
    outputs = jax.lax.conv_general_dilated(
      inputs.astype(self.compute_dtype),
      jnp.tile(kernel, channels).astype(self.compute_dtype),
      self.strides,
      self.padding,
      dimension_numbers=('NDHWC', 'DHWIO', 'NDHWC'),
      feature_group_count=channels,
      precision=jax.lax.Precision.HIGHEST,
    )
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class DiscriminatorResBlock(base_layer.BaseLayer):
  """A block of StyleGAN's discriminator, which halves time, height and width.

  Attributes:
    input_dim: I.
    output_dim: O.
    blur_filter_size: size of the kernel that blurs.
    conv_layer_tpl: all convolutions, which pad with zeros on both sides.
    activation_tpl: the activation.
    blur_pool_tpl: what blurs and halves.
  """

  input_dim: int = REQUIRED
  output_dim: int = 128
  blur_filter_size: int = 3
  conv_layer_tpl: Config = sub_config_field(conv.Conv3D)
  activation_tpl: Config = sub_config_field(activations.LeakyReLU)
  blur_pool_tpl: Config = sub_config_field(BlurPool3D)

  def setup(self):
    self.create_child('activation', self.activation_tpl)
    self._create_conv('conv_first', 3, self.input_dim)
    self._create_conv('conv_residual', 1, self.output_dim, bias=False)
    self._create_conv('conv_last', 3, self.output_dim)
    size = self.blur_filter_size
    self.create_child('blur_pool', self.blur_pool_tpl, filter_size=size)

  def _create_conv(self, name: str, size: int, outputs: int, bias: bool = True):
    self.create_child(
      name,
      self.conv_layer_tpl.clone(),
      filter_shape=(size, size, size, self.input_dim, outputs),
      filter_stride=(1, 1, 1),
      padding='SAME',
      bias=bias,
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, H, W, I] to [B, T', H', W', O].

    T' is half of T, rounded up; H' and W' likewise.
    """
    check_last_dim(self, 'input_dim', inputs)
    x = self.blur_pool(self.activation(self.conv_first(inputs)))
    x = self.activation(self.conv_last(x))
    shortcut = self.conv_residual(self.blur_pool(inputs))
    outputs = (x + shortcut) / math.sqrt(2.0)
    return self.shard(outputs, self.activation_split_dims_mapping.out)
