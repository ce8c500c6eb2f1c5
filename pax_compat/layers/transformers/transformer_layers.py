"""A Transformer layer.

Shapes: B batch, T time, S source time, L steps of decoding, D model dims, N
heads. Masks are boolean, True where a position may see another one, and
broadcast to [B, N, T, S].
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_layer import DECODE_CACHE
from pax_compat.config import Config, is_set, set_fields, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.attentions import dot_product
from pax_compat.layers.attentions.attention_masks import padding_mask
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformers.transformer_residuals import ResidualBlock


class Transformer(ResidualBlock):
  """One layer: attention to itself, perhaps to another sequence, feed-forward.

  What a field says of a part of the layer is handed to that part's template;
  a field that is not set leaves it to the template.

  Attributes:
    hidden_dims: size of the feed-forward's inner layer.
    num_heads: N.
    dim_per_head: dims of a head; None makes the heads D together.
    dropout_tpl: dropout of what the residuals add.
    atten_dropout_prob: probability of dropping an attention weight.
    relu_dropout_prob: probability of dropping an element of the feed-forward's
      inner layer.
    mask_self_attention: whether positions are hidden from earlier ones.
    use_cross_attention: whether there is attention to another sequence.
    allow_skip_cross_attention: whether that attention is left out where the
      other sequence is not given; else it has to be.
    cross_atten_tpl: attention to the other sequence, whose dims it may set as
      those of keys and values; None takes a copy of `tr_atten_tpl`.
    tr_atten_tpl: attention of the sequence to itself.
    tr_fflayer_tpl: the feed-forward, which has this layer's `norm_policy`
      unless it sets its own; None leaves it out.
    residual_from_normalized: whether, where attention sees its input
      normalised, the residual adds what it sees, as Lingvo's
      `TransformerAttentionLayer` does unless `add_unnormalized_input`.
    output_norm_tpl: a normalisation of the layer's output, or None.
  """

  hidden_dims: int | None = None
  num_heads: int | None = None
  dim_per_head: int | None = None
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  atten_dropout_prob: float = 0.0
  relu_dropout_prob: float = 0.0
  mask_self_attention: bool = False
  use_cross_attention: bool = False
  allow_skip_cross_attention: bool = False
  cross_atten_tpl: Config | None = None
  tr_atten_tpl: Config = sub_config_field(dot_product.DotProductAttention)
  tr_fflayer_tpl: Config | None = sub_config_field(TransformerFeedForward)
  residual_from_normalized: bool = False
  output_norm_tpl: Config | None = None

  def setup(self):
    refuse_mappings(self, 'wt')
    self._create_norms('', self.input_dims)
    self._create_attention('self_attention', 'tr_atten_tpl', self.tr_atten_tpl)
    self._create_dropouts('dropout_tpl', self.dropout_tpl)
    if self.use_cross_attention:
      self._create_norms('cross', self.input_dims)
      tpl = self.cross_atten_tpl or self.tr_atten_tpl.clone()
      self._create_attention('cross_attention', 'cross_atten_tpl', tpl)
    if self.tr_fflayer_tpl is not None:
      self._create_feed_forward(self.tr_fflayer_tpl)
    if self.output_norm_tpl is not None:
      tpl = self.output_norm_tpl
      fields = agreed('Transformer.output_norm_tpl', tpl, dim=self.input_dims)
      self.create_child('output_norm', tpl, **fields)

  def _create_attention(self, name: str, field: str, tpl: Config):
    sets_hidden_dim = is_set(tpl, 'hidden_dim')
    own_dims = isinstance(set_fields(tpl).get('input_dim'), Mapping)
    fields = agreed(
      f'Transformer.{field}',
      tpl,
      input_dim=None if own_dims else self.input_dims,
      hidden_dim=None if sets_hidden_dim else self.input_dims,
      num_heads=self.num_heads,
      dim_per_head=self.dim_per_head,
      atten_dropout_prob=self.atten_dropout_prob or None,
    )
    self.create_child(name, tpl, **fields)

  def _create_feed_forward(self, tpl: Config):
    fields = agreed(
      'Transformer.tr_fflayer_tpl',
      tpl,
      input_dims=self.input_dims,
      hidden_dims=self.hidden_dims,
      relu_dropout_prob=self.relu_dropout_prob or None,
      residual_dropout_prob=self.residual_dropout_prob or None,
      residual_droppath_prob=self.residual_droppath_prob or None,
    )
    if not is_set(tpl, 'norm_policy'):
      fields['norm_policy'] = self.norm_policy
    self.create_child('ff_layer', tpl, **fields)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    *,
    mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    cross_inputs: jax.Array | None = None,
    cross_mask: jax.Array | None = None,
    cross_segment_pos: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the layer.

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      mask: which positions see which, with regard to paddings and packing, but
        not to order if `mask_self_attention`; None hides padded ones.
      segment_ids: [B, T], the packed example that each position belongs to, for
        experts to which examples go as a whole; attention goes by `mask`.
      segment_pos: [B, T], the position of each token within its example; None
        for 0, 1, ...
      cross_inputs: [B, S, D], the other sequence.
      cross_mask: which positions see which of those; None hides nothing.
      cross_segment_pos: [B, S], the positions of those, as `segment_pos`.

    Returns:
      [B, T, D].

    Raises:
      UserError: the other sequence is missing.
    """
    if mask is None and paddings is not None:
      mask = padding_mask(paddings)

    def attend(x):
      return self.self_attention(
        x,
        x,
        x,
        mask=mask,
        causal=self.mask_self_attention,
        query_positions=segment_pos,
        key_positions=segment_pos,
      )

    def attend_across(x):
      return self.cross_attention(
        x,
        cross_inputs,
        cross_inputs,
        mask=cross_mask,
        query_positions=segment_pos,
        key_positions=cross_segment_pos,
      )

    crosses = self._crosses(given=cross_inputs is not None)
    return self._compute(
      inputs,
      paddings,
      attend,
      attend_across if crosses else None,
      segment_ids=segment_ids,
    )

  def _crosses(self, *, given: bool) -> bool:
    """Whether there is attention to the other sequence, if it may be."""
    if self.use_cross_attention and not given:
      if not self.allow_skip_cross_attention:
        raise errors.UserError(
          'Transformer.use_cross_attention is on, but there is no other'
          ' sequence (cross_inputs); allow_skip_cross_attention permits that'
        )
    return self.use_cross_attention and given

  def _compute(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None,
    attend: Callable[[jax.Array], jax.Array],
    attend_across: Callable[[jax.Array], jax.Array] | None,
    segment_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the layer, given its attentions as functions of the queries."""
    hidden = self._add_residual(
      inputs,
      attend,
      skip_from_normalized=self.residual_from_normalized,
    )
    if attend_across is not None:
      hidden = self._add_residual(
        hidden,
        attend_across,
        kind='cross',
        skip_from_normalized=self.residual_from_normalized,
      )
    if self.tr_fflayer_tpl is not None:
      given = {} if segment_ids is None else {'segment_ids': segment_ids}
      hidden = self.ff_layer(hidden, paddings, **given)
    if self.output_norm_tpl is not None:
      hidden = self.output_norm(hidden)
    return self.shard(hidden, self.activation_split_dims_mapping.out)

  def init_states(
    self,
    batch_size: int,
    max_length: int,
    *,
    cross_inputs: jax.Array | None = None,
  ):
    """Makes room to decode, before the first `extend_step`.

    Args:
      batch_size: B.
      max_length: up to how many positions are decoded.
      cross_inputs: [B, S, D], the other sequence.
    """
    crosses = self._crosses(given=cross_inputs is not None)
    self.self_attention.init_states(batch_size, max_length)
    if crosses:
      self.cross_attention.init_cross_states(cross_inputs)

  def extend_step(
    self,
    inputs: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    mask: jax.Array | None = None,
    causal: bool = True,
    cross_mask: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the layer at new positions, which see all earlier ones.

    Args:
      inputs: [B, L, D].
      time_step: [], the index of the first new position.
      segment_pos: [B, L], the position of each token within its example; None
        for `time_step`, `time_step + 1`, ...
      mask: which of the new positions see which of all of them, [B, N, L,
        max_length]; None hides nothing.
      causal: whether later ones among the new positions are hidden, too.
      cross_mask: which of the new positions see which of the other sequence.

    Returns:
      [B, L, D].
    """

    if segment_pos is None:
      segment_pos = (time_step + jnp.arange(inputs.shape[1]))[None]

    def attend(x):
      return self.self_attention.extend_step(
        x,
        time_step=time_step,
        mask=mask,
        causal=causal,
        query_positions=segment_pos,
      )

    def attend_across(x):
      return self.cross_attention.cross_step(
        x, mask=cross_mask, query_positions=segment_pos
      )

    crosses = self.use_cross_attention and (
      not self.allow_skip_cross_attention
      or self.cross_attention.has_variable(DECODE_CACHE, 'cross_key_state')
    )
    return self._compute(
      inputs, None, attend, attend_across if crosses else None
    )
