"""A Transformer layer.

Shapes: B batch, T time, S source time, L new positions of a decoding step, D
model dims, N heads. Masks are boolean, True where a position may attend to
another one, and broadcast to [B, N, T, S].
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
  """A layer of self-attention, optional cross-attention, and feed-forward.

  Fields about children are set on their templates; a field that is not set
  keeps the value of the template.

  Attributes:
    hidden_dims: dims of the feed-forward's hidden layer.
    num_heads: N.
    dim_per_head: dims of a head; None for D / N.
    dropout_tpl: dropout of the residual branches' outputs.
    atten_dropout_prob: dropout probability of attention weights.
    relu_dropout_prob: dropout probability of the feed-forward's hidden layer.
    mask_self_attention: whether self-attention is causal.
    use_cross_attention: whether there is attention to another sequence.
    allow_skip_cross_attention: whether cross-attention is skipped without
      cross_inputs; else they are required.
    cross_atten_tpl: the cross-attention; it may set the dims of keys and
      values. None copies `tr_atten_tpl`.
    tr_atten_tpl: the self-attention.
    tr_fflayer_tpl: the feed-forward, with this layer's `norm_policy` unless it
      sets its own; None for no feed-forward.
    residual_from_normalized: whether the residual connection of attention
      starts from its normalised input, as in Lingvo's
      `TransformerAttentionLayer` without `add_unnormalized_input`.
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
      mask: the attention mask for paddings and packing; `mask_self_attention`
        adds the causal one. None masks paddings.
      segment_ids: [B, T], the packed example of each position, for experts with
        sentence-level gating; attention uses `mask`.
      segment_pos: [B, T], the position of each token within its example; None
        for 0, 1, ...
      cross_inputs: [B, S, D], the other sequence.
      cross_mask: the mask of cross-attention, or None.
      cross_segment_pos: [B, S], the positions of the other sequence.

    Returns:
      [B, T, D].

    Raises:
      UserError: cross_inputs are missing.
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
    """Whether there is cross-attention, which may be skipped if allowed."""
    if self.use_cross_attention and not given:
      if not self.allow_skip_cross_attention:
        raise errors.UserError(
          'Transformer.use_cross_attention is True, but there are no'
          ' cross_inputs; expected them, or allow_skip_cross_attention=True'
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
    """Computes the layer from its attentions as functions of the queries."""
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
      kwargs = {} if segment_ids is None else {'segment_ids': segment_ids}
      hidden = self.ff_layer(hidden, paddings, **kwargs)
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
    """Initialises the decode states, before the first `extend_step`.

    Args:
      batch_size: B.
      max_length: maximum number of decoded positions.
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
    """Computes the layer at new positions, which attend to all earlier ones.

    Args:
      inputs: [B, L, D].
      time_step: [], the index of the first new position.
      segment_pos: [B, L], the position of each token within its example; None
        for `time_step`, `time_step + 1`, ...
      mask: of new positions by all positions, [B, N, L, max_length], or None.
      causal: whether attention among the new positions is causal.
      cross_mask: of new positions by those of the other sequence, or None.

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
