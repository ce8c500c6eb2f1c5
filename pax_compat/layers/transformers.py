"""Transformer layers.

Shapes: B batch, T time, D model dims.
"""

from collections.abc import Sequence

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import (
  activations,
  attentions,
  linears,
  normalizations,
  stochastics,
)


def _drop_padding(inputs: jax.Array, paddings: jax.Array) -> jax.Array:
  """Returns `inputs` [B, T, D], zero where `paddings` [B, T] is 1."""
  return inputs * (1.0 - paddings)[..., None].astype(inputs.dtype)


class TransformerFeedForward(base_layer.BaseLayer):
  """The feed-forward half of a Transformer layer, with its residual.

  Attributes:
    input_dims: D.
    hidden_dims: size of the inner layer.
    has_bias: whether the two projections have biases.
    use_pre_norm: whether the input of the sub-layer is normalised (as in
      pre-norm Transformers), else the output.
    activation_tpl: activation of the inner layer.
    relu_dropout_prob: dropout of the inner layer's output.
    residual_dropout_prob: dropout of what the residual adds.
    residual_weight: factor of what the residual adds.
    apply_padding: whether padded positions are zeroed after each projection.
    ln_tpl: the normalisation.
    fflayer1_tpl: the inner projection.
    fflayer2_tpl: the outer projection.
  """

  input_dims: int = REQUIRED
  hidden_dims: int = REQUIRED
  has_bias: bool = True
  use_pre_norm: bool = True
  activation_tpl: Config = sub_config_field(activations.ReLU)
  relu_dropout_prob: float = 0.0
  residual_dropout_prob: float = 0.0
  residual_weight: float = 1.0
  apply_padding: bool = True
  ln_tpl: Config = sub_config_field(normalizations.LayerNorm)
  fflayer1_tpl: Config = sub_config_field(linears.FeedForward)
  fflayer2_tpl: Config = sub_config_field(linears.FeedForward)

  def setup(self):
    self.create_child(
      'layer_norm', self.ln_tpl.clone().set(dim=self.input_dims)
    )
    self.create_child(
      'ffn_layer1',
      self.fflayer1_tpl.clone().set(
        input_dims=self.input_dims,
        output_dims=self.hidden_dims,
        has_bias=self.has_bias,
        activation_tpl=self.activation_tpl,
      ),
    )
    self.create_child(
      'ffn_layer2',
      self.fflayer2_tpl.clone().set(
        input_dims=self.hidden_dims,
        output_dims=self.input_dims,
        has_bias=self.has_bias,
        activation_tpl=activations.Identity.config(),
      ),
    )
    for name, prob in (
      ('relu_dropout', self.relu_dropout_prob),
      ('residual_dropout', self.residual_dropout_prob),
    ):
      self.create_child(name, stochastics.Dropout.config(keep_prob=1.0 - prob))

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, D] to the same shape; `paddings` is [B, T]."""
    hidden = self.layer_norm(inputs) if self.use_pre_norm else inputs
    hidden = self.ffn_layer1(hidden)
    if self.apply_padding:
      hidden = _drop_padding(hidden, paddings)
    hidden = self.ffn_layer2(self.relu_dropout(hidden))
    if self.apply_padding:
      hidden = _drop_padding(hidden, paddings)
    hidden = inputs + self.residual_dropout(hidden) * self.residual_weight
    return hidden if self.use_pre_norm else self.layer_norm(hidden)


class TransformerAttention(base_layer.BaseLayer):
  """The self-attention half of a Transformer layer, with its residual.

  Attributes:
    input_dims: D.
    hidden_dims: heads times dims of a head.
    num_heads: number of heads.
    causal: whether later positions are hidden.
    use_pre_norm: whether the input of the sub-layer is normalised, else the
      output.
    residual_from_normalized: whether the residual adds the normalised input
      instead of the input itself, as Lingvo's `TransformerAttentionLayer` does
      unless `add_unnormalized_input`.
    residual_dropout_prob: dropout of what the residual adds.
    ln_tpl: the normalisation.
    atten_tpl: the attention.
  """

  input_dims: int = REQUIRED
  hidden_dims: int = REQUIRED
  num_heads: int = REQUIRED
  causal: bool = False
  use_pre_norm: bool = True
  residual_from_normalized: bool = False
  residual_dropout_prob: float = 0.0
  ln_tpl: Config = sub_config_field(normalizations.LayerNorm)
  atten_tpl: Config = sub_config_field(attentions.DotProductAttention)

  def setup(self):
    self.create_child(
      'layer_norm', self.ln_tpl.clone().set(dim=self.input_dims)
    )
    self.create_child(
      'atten',
      self.atten_tpl.clone().set(
        input_dim=self.input_dims,
        hidden_dim=self.hidden_dims,
        num_heads=self.num_heads,
      ),
    )
    self.create_child(
      'residual_dropout',
      stochastics.Dropout.config(keep_prob=1.0 - self.residual_dropout_prob),
    )

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, D] to the same shape; `paddings` is [B, T]."""
    query = self.layer_norm(inputs) if self.use_pre_norm else inputs
    attended = self.atten(
      query,
      query,
      query,
      mask=attentions.padding_mask(paddings),
      causal=self.causal,
    )
    residual = query if self.residual_from_normalized else inputs
    hidden = residual + self.residual_dropout(attended)
    return hidden if self.use_pre_norm else self.layer_norm(hidden)


class Transformer(base_layer.BaseLayer):
  """One layer: self-attention, then feed-forward.

  Attributes:
    input_dims: D.
    hidden_dims: size of the feed-forward's inner layer.
    num_heads: number of attention heads.
    atten_hidden_dims: heads times dims of a head; None takes D.
    causal: whether later positions are hidden.
    tr_atten_tpl: the attention half.
    tr_fflayer_tpl: the feed-forward half.
    output_norm_tpl: a normalisation of the layer's output, or None.
  """

  input_dims: int = REQUIRED
  hidden_dims: int = REQUIRED
  num_heads: int = REQUIRED
  atten_hidden_dims: int | None = None
  causal: bool = False
  tr_atten_tpl: Config = sub_config_field(TransformerAttention)
  tr_fflayer_tpl: Config = sub_config_field(TransformerFeedForward)
  output_norm_tpl: Config | None = None

  def setup(self):
    self.create_child(
      'self_attention',
      self.tr_atten_tpl.clone().set(
        input_dims=self.input_dims,
        hidden_dims=self.atten_hidden_dims or self.input_dims,
        num_heads=self.num_heads,
        causal=self.causal,
      ),
    )
    self.create_child(
      'ff_layer',
      self.tr_fflayer_tpl.clone().set(
        input_dims=self.input_dims, hidden_dims=self.hidden_dims
      ),
    )
    if self.output_norm_tpl is not None:
      self.create_child(
        'output_norm', self.output_norm_tpl.clone().set(dim=self.input_dims)
      )

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, D] to the same shape; `paddings` is [B, T]."""
    hidden = self.self_attention(inputs, paddings)
    hidden = self.ff_layer(hidden, paddings)
    return hidden if self.output_norm_tpl is None else self.output_norm(hidden)


class StackedTransformer(base_layer.BaseLayer):
  """A stack of Transformer layers, each with weights of its own.

  Attributes:
    model_dims: D.
    num_layers: how many layers.
    transformer_layer_params_tpl: every layer, or a list with one for each.
  """

  model_dims: int = REQUIRED
  num_layers: int = REQUIRED
  transformer_layer_params_tpl: Config | Sequence[Config] = sub_config_field(
    Transformer
  )

  def setup(self):
    tpl = self.transformer_layer_params_tpl
    tpls = [tpl] * self.num_layers if isinstance(tpl, Config) else tpl
    if len(tpls) != self.num_layers:
      raise errors.UserError(
        f'StackedTransformer.num_layers is {self.num_layers}, but'
        f' transformer_layer_params_tpl has {len(tpls)} layers'
      )
    self.create_children(
      'x_layers', [t.clone().set(input_dims=self.model_dims) for t in tpls]
    )

  def __call__(self, inputs: jax.Array, paddings: jax.Array) -> jax.Array:
    """Maps `inputs` [B, T, D] to the same shape; `paddings` is [B, T]."""
    for layer in self.x_layers:
      inputs = layer(inputs, paddings)
    return inputs
