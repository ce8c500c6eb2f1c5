"""Vision Transformers, https://arxiv.org/abs/2010.11929.

Shapes: B batch, H height, W width, C channels, N tokens (patches and class
tokens), P height and width of a patch, I dims of a patch, D dims of a token.
"""

import math

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import activations, linears, poolings, stochastics
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers import stacked_transformers
from pax_compat.layers.vits import patches as patches_lib


class VitEntryLayers(base_layer.BaseLayer):
  """Maps images to tokens: patches, projected, with positions added.

  Attributes:
    pos_emb_shapes: rows and columns of the position embeddings; for images
      with other numbers of patches they are interpolated.
    patch_size: P; not used for inputs that are patches already.
    input_dims: I, which is P * P * C.
    output_dims: D.
    pos_emb_dropout_prob: dropout probability of the sum with the positions.
    prepend_cls_tokens: number of learned tokens before the patches.
    append_cls_tokens: number of learned tokens after the patches.
    cls_emb_init: initializer of these tokens.
    pos_emb_tpl: the position embeddings, or None.
    input_fc_has_bias: whether the projection has a bias.
  """

  pos_emb_shapes: tuple[int, int] = (0, 0)
  patch_size: int = 0
  input_dims: int = REQUIRED
  output_dims: int = REQUIRED
  pos_emb_dropout_prob: float = 0.0
  prepend_cls_tokens: int = 0
  append_cls_tokens: int = 0
  cls_emb_init: WeightInit = WeightInit.Constant(0.0)
  pos_emb_tpl: Config | None = sub_config_field(
    positional_embeddings.TrainablePositionalEmbedding
  )
  input_fc_has_bias: bool = True

  def setup(self):
    projection = linears.FeedForward.config(
      input_dims=self.input_dims,
      output_dims=self.output_dims,
      has_bias=self.input_fc_has_bias,
      activation_tpl=activations.Identity.config(),
    )
    self.create_child('patch_projection', projection)
    if self.pos_emb_tpl is not None:
      self.create_child('pos_emb', self.pos_emb_tpl)
    if self.pos_emb_dropout_prob:
      keep_prob = 1.0 - self.pos_emb_dropout_prob
      dropout = stochastics.Dropout.config(keep_prob=keep_prob)
      self.create_child('dropout', dropout)
    for where, count in self._class_tokens().items():
      if count:
        shape = [1, count, self.output_dims]
        weight = WeightHParams(shape, self.cls_emb_init)
        self.create_variable(f'{where}_cls_embs', weight)

  def _class_tokens(self) -> dict[str, int]:
    return dict(prepend=self.prepend_cls_tokens, append=self.append_cls_tokens)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns tokens [B, N, D].

    Args:
      inputs: images [B, H, W, C], or patches [B, N, I].

    Raises:
      UserError: P does not divide H and W, or the rank is not one of these.
    """
    if inputs.ndim not in (3, 4):
      raise errors.UserError(
        f'VitEntryLayers: inputs of shape {list(inputs.shape)}; expected'
        ' [batch, height, width, channels] or [batch, patches, dims]'
      )
    features, is_image = inputs, inputs.ndim == 4
    if is_image:
      features = patches_lib.image_to_patch(inputs, self.patch_size)
    features = self.patch_projection(features)
    if self.pos_emb_tpl is not None:
      height_and_width = inputs.shape[1:3] if is_image else None
      features = features + self._positions(height_and_width)
    if self.pos_emb_dropout_prob:
      features = self.dropout(features)
    outputs = self._with_class_tokens(features)
    return self.shard(outputs, self.activation_split_dims_mapping.out)

  def _positions(self, height_and_width: tuple[int, int] | None) -> jax.Array:
    """Returns the position embeddings of images, [1, patches, D]."""
    shape = tuple(self.pos_emb_shapes)
    embedded = self.pos_emb(seq_length=math.prod(shape))
    if height_and_width is None or len(shape) != 2:
      return embedded
    grid = tuple(size // self.patch_size for size in height_and_width)
    if grid == shape:
      return embedded
    return patches_lib.interpolate_embedding_2d(embedded, shape, grid)

  def _with_class_tokens(self, features: jax.Array) -> jax.Array:
    def tokens(where, count):
      learned = self.get_theta(f'{where}_cls_embs') if count else None
      if learned is None:
        return []
      return [jnp.broadcast_to(learned, (len(features), *learned.shape[1:]))]

    before, after = (
      tokens(where, count) for where, count in self._class_tokens().items()
    )
    return jnp.concatenate([*before, features, *after], axis=1)


class VitExitLayers(base_layer.BaseLayer):
  """Maps tokens to the features of an image.

  Attributes:
    hidden_dim: D.
    output_dim: dims of the features; without `output_fc_tanh` 0 keeps D.
    output_dropout_prob: dropout probability of the features.
    pooled: whether tokens are pooled; else there are features of each token.
    pre_ln: whether tokens are normalised first.
    output_fc_tanh: whether there is a projection with tanh at the end; else it
      has no activation, and is there only where the dims differ.
    output_fc_has_bias: whether the projection has a bias.
    pooling_tpl: the pooling. As in Pax, its `pooling_dims` have to be set.
    ln_tpl: the normalisation.
  """

  hidden_dim: int = REQUIRED
  output_dim: int = 0
  output_dropout_prob: float = 0.0
  pooled: bool = True
  pre_ln: bool = True
  output_fc_tanh: bool = True
  output_fc_has_bias: bool = True
  pooling_tpl: Config = sub_config_field(poolings.GlobalPooling)
  ln_tpl: Config = sub_config_field(norm_layers.LayerNorm)

  def setup(self):
    if self.pre_ln:
      self.create_child('ln', self.ln_tpl, dim=self.hidden_dim)
    if self.pooled:
      self.create_child('pooling', self.pooling_tpl)
    if self.output_fc_tanh:
      self.create_child('fc_tanh', self._projection(activations.Tanh))
    elif self._projects:
      projection = self._projection(activations.Identity)
      self.create_child('output_projection', projection)
    if self.output_dropout_prob:
      keep_prob = 1.0 - self.output_dropout_prob
      dropout = stochastics.Dropout.config(keep_prob=keep_prob)
      self.create_child('dropout', dropout)

  @property
  def _projects(self) -> bool:
    return self.output_dim not in (0, self.hidden_dim)

  def _projection(self, activation: type) -> Config:
    return linears.FeedForward.config(
      input_dims=self.hidden_dim,
      output_dims=self.output_dim,
      has_bias=self.output_fc_has_bias,
      activation_tpl=activation.config(),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps tokens [B, N, D] to [B, output_dim], or [B, N, output_dim]."""
    outputs = self.ln(inputs) if self.pre_ln else inputs
    if self.pooled:
      outputs = self.pooling(outputs)
    if self.output_fc_tanh:
      outputs = self.fc_tanh(outputs)
    elif self._projects:
      outputs = self.output_projection(outputs)
    if self.output_dropout_prob:
      outputs = self.dropout(outputs)
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class VisionTransformer(base_layer.BaseLayer):
  """A Transformer on the patches of images.

  Attributes:
    entry_layers_tpl: maps images to tokens; None for inputs that are tokens.
    transformer_layers_tpl: the stack of Transformer layers.
    exit_layers_tpl: maps tokens to features; None for tokens as outputs.
    full_data_parallel_on_entry_exit: whether the batch is split over all axes
      of the mesh before and after the stack.
  """

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations over the mesh.

    Attributes:
      network_inputs: mapping of the tokens [B, N, D] before and after the
        stack.
    """

    network_inputs: SplitDimsMapping = None

  entry_layers_tpl: Config | None = sub_config_field(VitEntryLayers)
  transformer_layers_tpl: Config = sub_config_field(
    stacked_transformers.StackedTransformer
  )
  exit_layers_tpl: Config | None = sub_config_field(VitExitLayers)
  full_data_parallel_on_entry_exit: bool = False

  def setup(self):
    if self.transformer_layers_tpl is None:
      raise errors.UserError(
        'VisionTransformer.transformer_layers_tpl is None; expected a stack of'
        ' Transformer layers'
      )
    if self.entry_layers_tpl is not None:
      self.create_child('entry_stack', self.entry_layers_tpl)
    self.create_child('transformers_stack', self.transformer_layers_tpl)
    if self.exit_layers_tpl is not None:
      self.create_child('exit_stack', self.exit_layers_tpl)

  def shard_entry_exit(self, x: jax.Array) -> jax.Array:
    """Splits the batch of `x` [B, ...] over all axes, if that is set."""
    axes = self.mesh_axis_names
    if axes is None or not self.full_data_parallel_on_entry_exit:
      return x
    return self.shard(x, [tuple(axes), *[None] * (x.ndim - 1)])

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
  ) -> jax.Array:
    """Applies the network.

    Args:
      inputs: images [B, H, W, C], patches [B, N, I], or without
        `entry_layers_tpl` tokens [B, N, D].
      paddings: [B, N], 1 where a token is padding; None if there is none.
      segment_pos: [B, N], positions for the layers of the stack; None takes
        0..N-1.

    Returns:
      As of the exit: [B, features], or [B, N, features].
    """
    tokens = self.activation_split_dims_mapping.network_inputs
    features = inputs
    if self.entry_layers_tpl is not None:
      features = self.entry_stack(self.shard_entry_exit(features))
      features = self.shard(self.shard_entry_exit(features), tokens)
    features = self.transformers_stack(
      features, paddings, segment_pos=segment_pos
    )
    if self.exit_layers_tpl is not None:
      features = self.shard_entry_exit(self.shard(features, tokens))
      features = self.shard_entry_exit(self.exit_stack(features))
    return self.shard(features, self.activation_split_dims_mapping.out)


def build_vision_transformer_hparams_for_test(
  pos_emb_shapes: tuple[int, int],
  patch_size: int,
  image_channels: int,
  model_dims: int,
  mlp_dims: int,
  num_xformer_layers: int,
  num_heads: int,
) -> Config:
  """Returns the config of a small VisionTransformer, for tests.

  Args:
    pos_emb_shapes: rows and columns of patches.
    patch_size: P.
    image_channels: C.
    model_dims: D.
    mlp_dims: dims of the feed-forward's hidden layer.
    num_xformer_layers: number of layers.
    num_heads: number of heads.
  """
  positions = positional_embeddings.TrainablePositionalEmbedding.config(
    max_seq_length=math.prod(pos_emb_shapes),
    embedding_dims=model_dims,
    params_init=WeightInit.Gaussian(scale=0.02),
  )
  stack = stacked_transformers.StackedTransformer.config(
    model_dims=model_dims,
    hidden_dims=mlp_dims,
    num_heads=num_heads,
    mask_self_attention=False,
    use_cross_attention=False,
    num_layers=num_xformer_layers,
  )
  attention = stack.transformer_layer_params_tpl.tr_atten_tpl
  attention.internal_enable_per_dim_scale = False
  return VisionTransformer.config(
    name='vit',
    entry_layers_tpl=VitEntryLayers.config(
      pos_emb_shapes=pos_emb_shapes,
      patch_size=patch_size,
      input_dims=patch_size**2 * image_channels,
      output_dims=model_dims,
      pos_emb_tpl=positions,
    ),
    transformer_layers_tpl=stack,
    exit_layers_tpl=VitExitLayers.config(
      hidden_dim=model_dims, output_dim=model_dims
    ),
  )
