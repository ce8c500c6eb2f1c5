"""Conformer layers, https://arxiv.org/abs/2005.08100.

Shapes: B batch, T time, D model dims, K kernel size.
"""

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations
from pax_compat.layers.conformers.self_attention import (
  SelfAttentionWithNormAndResidual,
)
from pax_compat.layers.convolutions import light_convolutions
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers import transformer_feed_forward

# The blocks between the feed-forwards.
_ORDERS = {
  'mhsa': ('trans_atten',),
  'conv': ('lconv',),
  'mhsa_before_conv': ('trans_atten', 'lconv'),
  'conv_before_mhsa': ('lconv', 'trans_atten'),
}
_DROPOUTS = (
  'atten_dropout',
  'atten_residual_dropout',
  'conv_residual_dropout',
  'ffn_residual_dropout',
  'ffn_relu_dropout',
)


class Conformer(base_layer.BaseLayer):
  """Feed-forward, attention, convolution, feed-forward, normalisation.

  The blocks have residual connections; that of the feed-forwards adds half of
  their output.

  Attributes:
    input_dims: dims of the inputs; if they are not D, `fflayer_start_tpl` needs
      `add_skip_connection=False`, so that it projects them.
    model_dims: D.
    kernel_size: K.
    ff_activation_tpl: activation of the feed-forwards.
    ff_residual_weight: factor of the feed-forwards' outputs.
    ffn_dim_multiplier: hidden dims of the feed-forwards as a multiple of D.
    atten_num_heads: number of heads.
    layer_order: 'mhsa', 'conv', 'mhsa_before_conv' or 'conv_before_mhsa'.
    dropout_prob: all of the following probabilities; None leaves them.
    conv_residual_dropout: dropout of the convolution's output; None is 0.
    atten_residual_dropout: dropout of the attention's output.
    ffn_residual_dropout: dropout of the feed-forwards' outputs.
    atten_dropout: dropout of the attention weights.
    ffn_relu_dropout: dropout of the feed-forwards' hidden layers.
    fflayer_start_tpl: the first feed-forward, or None.
    trans_atten_tpl: the attention.
    lconv_tpl: the convolution.
    fflayer_end_tpl: the last feed-forward, or None.
    fflayer_weight_sharing: whether the last feed-forward is the first one,
      applied again.
    final_ln_tpl: the normalisation at the end, or None.
  """

  input_dims: int = REQUIRED
  model_dims: int = 512
  kernel_size: int = 32
  ff_activation_tpl: Config = sub_config_field(activations.Swish)
  ff_residual_weight: float = 0.5
  ffn_dim_multiplier: int = 4
  atten_num_heads: int = 8
  layer_order: str = 'mhsa_before_conv'
  dropout_prob: float | None = None
  conv_residual_dropout: float | None = None
  atten_residual_dropout: float | None = None
  ffn_residual_dropout: float | None = None
  atten_dropout: float | None = None
  ffn_relu_dropout: float | None = None
  fflayer_start_tpl: Config | None = sub_config_field(
    transformer_feed_forward.TransformerFeedForward
  )
  trans_atten_tpl: Config = sub_config_field(SelfAttentionWithNormAndResidual)
  lconv_tpl: Config | None = sub_config_field(light_convolutions.LightConv1D)
  fflayer_end_tpl: Config | None = sub_config_field(
    transformer_feed_forward.TransformerFeedForward
  )
  fflayer_weight_sharing: bool = False
  final_ln_tpl: Config | None = sub_config_field(norm_layers.LayerNorm)

  def setup(self):
    self._check_fields()
    if self.fflayer_start_tpl is not None:
      self._create_feed_forward('fflayer_start', self.input_dims)
    if self.fflayer_end_tpl is not None and not self.fflayer_weight_sharing:
      self._create_feed_forward('fflayer_end', self.model_dims)
    if 'mhsa' in self.layer_order:
      self._create_attention()
    if 'conv' in self.layer_order:
      self.create_child(
        'lconv',
        self.lconv_tpl.clone(),
        input_dims=self.model_dims,
        kernel_size=self.kernel_size,
        dropout_prob=self._dropout(self.conv_residual_dropout),
      )
    if self.final_ln_tpl is not None:
      self.create_child('final_ln', self.final_ln_tpl, dim=self.model_dims)

  def _check_fields(self):
    errors.check_choice(self, 'layer_order', _ORDERS)
    for field in _DROPOUTS:
      value = getattr(self, field)
      if self.dropout_prob is not None and value not in (
        None,
        self.dropout_prob,
      ):
        raise errors.UserError(
          f'Conformer.{field} is {value} and dropout_prob'
          f' {self.dropout_prob}, which sets it; expected only one of the two'
        )
    if 'conv' in self.layer_order and self.lconv_tpl is None:
      raise errors.UserError(
        f'Conformer.layer_order is {self.layer_order!r}, but lconv_tpl is None'
      )
    if self.input_dims != self.model_dims and (
      self.fflayer_start_tpl is None or self.fflayer_weight_sharing
    ):
      raise errors.UserError(
        f'Conformer.input_dims is {self.input_dims} and model_dims'
        f' {self.model_dims}; without a first feed-forward of its own, expected'
        ' them to be the same'
      )
    if self.fflayer_weight_sharing and self.fflayer_start_tpl is None:
      raise errors.UserError(
        'Conformer.fflayer_weight_sharing is set, but fflayer_start_tpl is None'
      )

  def _dropout(self, prob: float | None) -> float:
    """Returns the probability of one of the dropouts."""
    return (prob or 0.0) if self.dropout_prob is None else self.dropout_prob

  def _create_feed_forward(self, name: str, input_dims: int):
    tpl = getattr(self, f'{name}_tpl').clone()
    self.create_child(
      name,
      tpl,
      activation_tpl=self.ff_activation_tpl.clone(),
      input_dims=input_dims,
      output_dims=self.model_dims if input_dims != self.model_dims else 0,
      hidden_dims=self.model_dims * self.ffn_dim_multiplier,
      residual_weight=self.ff_residual_weight,
      residual_dropout_prob=self._dropout(self.ffn_residual_dropout),
      relu_dropout_prob=self._dropout(self.ffn_relu_dropout),
    )

  def _create_attention(self):
    tpl = self.trans_atten_tpl.clone()
    tpl.self_atten_tpl.set(
      input_dim=self.model_dims,
      hidden_dim=self.model_dims,
      atten_dropout_prob=self._dropout(self.atten_dropout),
      num_heads=self.atten_num_heads,
    )
    tpl.norm_tpl.dim = self.model_dims
    prob = self._dropout(self.atten_residual_dropout)
    self.create_child('trans_atten', tpl, residual_dropout_prob=prob)

  @property
  def has_fflayer_start(self) -> bool:
    """Whether there is a first feed-forward."""
    return self.fflayer_start_tpl is not None

  @property
  def has_fflayer_end(self) -> bool:
    """Whether there is a last feed-forward with weights of its own."""
    return self.fflayer_end_tpl is not None and not self.fflayer_weight_sharing

  @property
  def has_final_ln(self) -> bool:
    """Whether there is a normalisation at the end."""
    return self.final_ln_tpl is not None

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    atten_mask: jax.Array | None = None,
  ) -> jax.Array:
    """Maps `inputs` [B, T, D] to [B, T, D].

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding.
      atten_mask: an additional mask of the attention, boolean; None hides
        nothing.

    Raises:
      UserError: there is a mask, but no attention.
    """
    blocks = _ORDERS[self.layer_order]
    if atten_mask is not None and 'trans_atten' not in blocks:
      raise errors.wrong_field(
        self, 'layer_order', 'no atten_mask without attention'
      )
    x = (
      self.fflayer_start(inputs, paddings) if self.has_fflayer_start else inputs
    )
    for name in blocks:
      mask = (atten_mask,) if name == 'trans_atten' else ()
      x = getattr(self, name)(x, paddings, *mask)
    if self.has_fflayer_end:
      x = self.fflayer_end(x, paddings)
    elif self.fflayer_weight_sharing:
      x = self.fflayer_start(x, paddings)
    x = self.final_ln(x) if self.has_final_ln else x
    return self.shard(x, self.activation_split_dims_mapping.out)
