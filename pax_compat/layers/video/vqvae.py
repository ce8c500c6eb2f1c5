"""VQ-VAEs of videos and the discriminator that makes them VQGANs.

The networks are those of MAGVIT-v2, https://arxiv.org/abs/2310.05737.

Shapes: B batch, T frames, H height, W width, C channels, E dims of an
embedding; t, h and w are those of embeddings.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, config, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import activations, linears
from pax_compat.layers.convolutions import conv
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.video import enc_dec_3dcnn, quantizer
from pax_compat.nested_map import NestedMap

# Slope of the discriminator's activations for negative values.
_SLOPE = 0.2


class _Codec(base_layer.BaseLayer):
  """What an encoder and a decoder have: stages of residual blocks.

  Attributes:
    filters: channels of a stage with a multiplier of 1.
    embedding_dim: E.
    num_res_blocks: blocks of a stage.
    temporal_downsample: whether the frames are halved after a stage, of all
      stages but the last; height and width always are. Values beyond are
      ignored.
    channel_multipliers: factor of the channels of each stage.
    norm_tpl: the last normalization.
    conv_tpl: the convolutions outside of blocks.
    res_block_tpl: the blocks.
    activation_tpl: the last activation.
  """

  filters: int = 128
  embedding_dim: int = 8
  num_res_blocks: int = 4
  temporal_downsample: Sequence[bool] = (False, True, True)
  channel_multipliers: Sequence[int] = (1, 2, 2, 4)
  norm_tpl: Config = sub_config_field(enc_dec_3dcnn.GroupNormSpatial)
  conv_tpl: Config = sub_config_field(enc_dec_3dcnn.CausalConv)
  res_block_tpl: Config = sub_config_field(enc_dec_3dcnn.ResBlock)
  activation_tpl: Config = sub_config_field(activations.Swish)

  @property
  def _dims(self) -> list[int]:
    """The channels of each stage."""
    return [self.filters * factor for factor in self.channel_multipliers]

  @property
  def _time_strides(self) -> list[int]:
    """The stride in time after each stage but the last."""
    between = self.temporal_downsample[: len(self.channel_multipliers) - 1]
    return [2 if halves else 1 for halves in between]

  def _check_stages(self):
    errors.check_least(self, 1, 'num_res_blocks')
    stages = len(self.channel_multipliers)
    if not stages:
      raise errors.wrong_field(self, 'channel_multipliers', 'a stage')
    if len(self.temporal_downsample) < stages - 1:
      raise errors.wrong_field(
        self,
        'temporal_downsample',
        f'at least {stages - 1} values, one for each stage but the last',
      )

  def _create_blocks(self, dims: Sequence[int], inputs: int):
    """Creates the blocks of stages with these outputs, one after another."""
    where = f'{type(self).__name__}.res_block_tpl'
    blocks = []
    for outputs in dims:
      for _ in range(self.num_res_blocks):
        tpl = self.res_block_tpl.clone()
        tpl.set(**agreed(where, tpl, use_conv_shortcut=False))
        blocks.append(tpl.set(input_dim=inputs, output_dim=outputs))
        inputs = outputs
    self.create_children('res_blocks', blocks)

  def _run_stage(self, stage: int, x: jax.Array) -> jax.Array:
    first = stage * self.num_res_blocks
    for block in self.res_blocks[first : first + self.num_res_blocks]:
      x = block(x)
    return x

  def _create_ends(self, first: Config, dim: int, last: Config):
    """Creates what is before and after the stages.

    Args:
      first: the first convolution.
      dim: channels of the last stage.
      last: the last convolution.
    """
    self.create_child('conv_first', first)
    self.create_child('norm', self.norm_tpl, dim=dim)
    self.create_child('activation', self.activation_tpl)
    self.create_child('conv_last', last)

  def _conv(self, size: int, inputs: int, outputs: int, **fields) -> Config:
    shape = size, size, size, inputs, outputs
    return (
      self.conv_tpl.clone().set(filter_shape=shape, bias=True).set(**fields)
    )

  def _run_last(self, x: jax.Array) -> jax.Array:
    x = self.conv_last(self.activation(self.norm(x)))
    return self.shard(x, self.activation_split_dims_mapping.out)


class Encoder(_Codec):
  """Maps videos to embeddings.

  A convolution, the stages with a strided convolution between them, a stage of
  the same channels as the last, and a convolution of size 1.

  Unlike in Pax, only the values of `temporal_downsample` that are used limit
  the number of frames, and a `res_block_tpl` with `use_conv_shortcut`, which
  has no effect in Pax, is an error.

  Attributes:
    input_dim: C.
    conv_downsample: must be True, as in Pax.
  """

  input_dim: int = 3
  conv_downsample: bool = True

  def setup(self):
    errors.check_choice(self, 'conv_downsample', (True,))
    self._check_stages()
    dims = self._dims
    self._create_blocks([*dims, dims[-1]], self.filters)
    self.create_children(
      'conv_downsample_layers',
      [
        self._conv(4, dim, dim, filter_stride=(stride, 2, 2))
        for dim, stride in zip(dims, self._time_strides, strict=False)
      ],
    )
    self._create_ends(
      self._conv(3, self.input_dim, self.filters, bias=False),
      dims[-1],
      self._conv(1, dims[-1], self.embedding_dim),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, H, W, C] to [B, t, h, w, E].

    Raises:
      UserError: T is not 1 more than a multiple of what the frames are reduced
        by.
    """
    factor = math.prod(self._time_strides)
    if inputs.ndim != 5 or (inputs.shape[1] - 1) % factor:
      raise errors.UserError(
        f'{type(self).__name__}: inputs of shape {list(inputs.shape)}; expected'
        f' [B, T, H, W, {self.input_dim}] with T = 1 + a multiple of {factor},'
        ' as the first frame is encoded by itself'
      )
    x = self.conv_first(inputs)
    for stage, halve in enumerate(self.conv_downsample_layers):
      x = halve(self._run_stage(stage, x))
    last = len(self.channel_multipliers) - 1
    x = self._run_stage(last + 1, self._run_stage(last, x))
    return self._run_last(x)


class Decoder(_Codec):
  """Maps embeddings to videos.

  A convolution, a stage of the encoder's last channels, then the stages from
  the last to the first. Each is after a normalization that depends on the
  embeddings, and before a convolution whose channels become frames and pixels;
  frames that become of the first one are dropped, but for the last of them.

  Unlike in Pax, a `res_block_tpl` with `use_conv_shortcut`, which has no effect
  there, is an error.

  Attributes:
    output_dim: C.
    cond_norm_tpl: normalizations that depend on the embeddings.
  """

  output_dim: int = 3
  cond_norm_tpl: Config = sub_config_field(enc_dec_3dcnn.CondNormLayer)

  def setup(self):
    self._check_stages()
    dims = self._dims[::-1]
    self._create_blocks([dims[0], *dims], dims[0])
    self.create_children(
      'cond_norm_layers',
      [
        self.cond_norm_tpl.clone().set(dim=dim, emb_dim=self.embedding_dim)
        for dim in [dims[0], *dims[:-1]]
      ],
    )
    self.create_children(
      'conv_upsample_layers',
      [
        self._conv(3, dim, 4 * stride * dim)
        for dim, stride in zip(dims, self._time_strides[::-1], strict=False)
      ],
    )
    self._create_ends(
      self._conv(3, self.embedding_dim, dims[0]),
      dims[-1],
      self._conv(3, dims[-1], self.output_dim),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, t, h, w, E] to [B, T, H, W, C]."""
    embeddings = inputs
    x = self._run_stage(0, self.conv_first(inputs))
    dims, strides = self._dims[::-1], self._time_strides[::-1]
    for i, norm in enumerate(self.cond_norm_layers):
      x = self._run_stage(1 + i, norm(x, embeddings))
      if i < len(strides):
        x = self.conv_upsample_layers[i](x)
        x = enc_dec_3dcnn.depth_to_space(x, strides[i], dims[i])
        x = x[:, strides[i] - 1 :]
        for axis, factor in enumerate((strides[i], 2, 2), start=1):
          embeddings = jnp.repeat(embeddings, factor, axis)
        embeddings = embeddings[:, strides[i] - 1 :]
    return self._run_last(x)


class Discriminator(base_layer.BaseLayer):
  """StyleGAN's discriminator of videos, https://arxiv.org/abs/1912.04958.

  Attributes:
    filters: channels of a block with a multiplier of 1, and before the blocks.
    num_frames: T.
    image_height: H.
    image_width: W.
    input_dim: C.
    blur_filter_size: size of the kernels that blur.
    channel_multipliers: factor of the channels of each block.
    conv_tpl: the convolutions outside of blocks.
    res_block_tpl: the blocks.
    activation_tpl: the activation, also of the blocks and of `proj_tpl`; its
      `negative_slope` is 0.2, if it has one, and another one is an error.
    proj_tpl: maps what the blocks leave to a logit.
  """

  filters: int = 128
  num_frames: int = 1
  image_height: int = 256
  image_width: int = 256
  input_dim: int = 3
  blur_filter_size: int = 3
  channel_multipliers: Sequence[int] = (2, 4, 4, 4)
  conv_tpl: Config = sub_config_field(conv.Conv3D)
  res_block_tpl: Config = sub_config_field(enc_dec_3dcnn.DiscriminatorResBlock)
  activation_tpl: Config = sub_config_field(activations.LeakyReLU)
  proj_tpl: Config = sub_config_field(linears.MLPBlock)

  @property
  def _input_sizes(self) -> tuple[int, int, int, int]:
    """T, H, W and C."""
    size = self.num_frames, self.image_height, self.image_width
    return *size, self.input_dim

  def setup(self):
    activation = self._activation()
    dims = [self.filters * factor for factor in self.channel_multipliers]
    last = [self.filters, *dims][-1]
    self.create_child('activation', activation)
    self._create_conv('conv_first', self.input_dim, self.filters)
    self.create_children(
      'res_blocks',
      [
        self.res_block_tpl.clone().set(
          input_dim=before,
          output_dim=dim,
          activation_tpl=activation.clone(),
          blur_filter_size=self.blur_filter_size,
        )
        for before, dim in zip([self.filters, *dims], dims, strict=False)
      ],
    )
    self._create_conv('conv_last', last, last)
    # Each block halves a size, rounded up.
    sizes = [math.ceil(x / 2 ** len(dims)) for x in self._input_sizes[:3]]
    proj = self.proj_tpl.clone()
    proj.ff_tpl.set(
      input_dims=last * math.prod(sizes),
      output_dims=1,
      activation_tpl=activation.clone(),
    )
    fields = dict(num_layers=2, hidden_dims=last, activate_final=False)
    self.create_child('proj', proj, **fields)

  def _activation(self) -> Config:
    tpl = self.activation_tpl.clone()
    if 'negative_slope' in config.field_names(tpl):
      where = f'{type(self).__name__}.activation_tpl'
      tpl.set(**agreed(where, tpl, negative_slope=_SLOPE))
    return tpl

  def _create_conv(self, name: str, inputs: int, outputs: int):
    self.create_child(
      name,
      self.conv_tpl.clone(),
      filter_shape=(3, 3, 3, inputs, outputs),
      filter_stride=(1, 1, 1),
      padding='SAME',
      bias=True,
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, H, W, C] to logits [B, 1].

    Raises:
      UserError: the inputs are of other sizes than the fields have.
    """
    if inputs.shape[1:] != self._input_sizes:
      sizes = ', '.join(map(str, self._input_sizes))
      raise errors.UserError(
        f'{type(self).__name__}: inputs of shape {list(inputs.shape)}; expected'
        f' [B, {sizes}], by num_frames, image_height, image_width and input_dim'
      )
    x = self.activation(self.conv_first(inputs))
    for block in self.res_blocks:
      x = block(x)
    x = self.activation(self.conv_last(x))
    logits = self.proj(x.reshape(len(x), -1))
    return self.shard(logits, self.activation_split_dims_mapping.out)


class VQVaeModel(base_layer.BaseLayer):
  """A VQ-VAE of videos, https://arxiv.org/abs/1711.00937.

  Its fields replace those of the templates, as in Pax.

  Attributes:
    encoder_tpl: from videos to embeddings.
    decoder_tpl: from quantized embeddings to videos.
    quantizer_tpl: the quantizer of embeddings.
    temporal_downsample: of encoder and decoder.
    channel_multipliers: likewise.
    embedding_dim: E.
    filters: of encoder and decoder.
    num_res_blocks: likewise.
  """

  encoder_tpl: Config = sub_config_field(Encoder)
  decoder_tpl: Config = sub_config_field(Decoder)
  quantizer_tpl: Config = sub_config_field(quantizer.LookupFreeQuantizer)
  temporal_downsample: Sequence[bool] = (False, True, True)
  channel_multipliers: Sequence[int] = (1, 2, 2, 4)
  embedding_dim: int = 8
  filters: int = 32
  num_res_blocks: int = 4

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    dims = self.embedding_dim
    for name in ('encoder', 'decoder'):
      self.create_child(
        name,
        getattr(self, f'{name}_tpl'),
        temporal_downsample=self.temporal_downsample,
        channel_multipliers=self.channel_multipliers,
        embedding_dim=dims,
        filters=self.filters,
        num_res_blocks=self.num_res_blocks,
      )
    self.create_child('quantizer', self.quantizer_tpl, embedding_dim=dims)

  def encode(self, inputs: jax.Array) -> tuple[jax.Array, NestedMap]:
    """Maps videos [B, T, H, W, C] to what the quantizer returns.

    Returns:
      Quantized embeddings [B, t, h, w, E], and the quantizer's losses and
      indices; see its class.
    """
    return self.quantizer(self.encoder(inputs))

  def encode_to_indices(self, inputs: jax.Array) -> jax.Array:
    """Maps videos [B, T, H, W, C] to indices, [B, t, h, w] of one group."""
    return self.encode(inputs)[1].encoding_indices

  def encode_to_latents(self, inputs: jax.Array) -> jax.Array:
    """Maps videos [B, T, H, W, C] to [B, t, h, w, E], not quantized."""
    return self.encoder(inputs)

  def decode(self, inputs: jax.Array) -> jax.Array:
    """Maps quantized embeddings [B, t, h, w, E] to videos [B, T, H, W, C]."""
    return self.decoder(inputs)

  def decode_from_indices(self, ids: jax.Array) -> jax.Array:
    """Maps what `encode_to_indices` returns to videos [B, T, H, W, C]."""
    return self.decode(self.quantizer.decode_ids(ids))

  def decode_from_latents(self, latents: jax.Array) -> jax.Array:
    """Maps embeddings [B, t, h, w, E], not quantized, to [B, T, H, W, C]."""
    return self.decode(self.quantizer(latents)[0])

  def __call__(self, inputs: jax.Array) -> tuple[jax.Array, NestedMap]:
    """Returns videos as they are decoded, and what the quantizer returns.

    Args:
      inputs: [B, T, H, W, C].
    """
    quantized, output = self.encode(inputs)
    return self.decode(quantized), output
