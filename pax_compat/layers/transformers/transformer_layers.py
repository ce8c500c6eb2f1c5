"""A Transformer layer.

Shapes: B batch, T time, S source time, L new positions of a decoding step, D
model dims, N heads. Masks are `AttentionMask`s, or additive or boolean arrays
that broadcast to [B, N, T, S]; see `AttentionMask.of`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE
from pax_compat.config import Config, is_set, set_fields, sub_config_field
from pax_compat.layer_core.decode_states import (
  ForwardsDecodeStates,
  StateFn,
  repeat_rows,
)
from pax_compat.layers import stochastics
from pax_compat.layers.attentions import attention_masks, dot_product
from pax_compat.layers.attentions.attention_masks import AttentionMask, Mask
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformers.transformer_residuals import ResidualBlock
from pax_compat.nested_map import NestedMap


class Transformer(ForwardsDecodeStates, ResidualBlock):
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
    ngrammer_tpl: the `ngrammer_tpl` of the self-attention, or None.
    packed_input: has no effect, as in Pax: masks keep packed examples apart.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *ResidualBlock.SILENT_UNLESS_SET,
    'ngrammer_tpl',
    'packed_input',
  )

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
  ngrammer_tpl: Config | None = None
  packed_input: bool = False

  def setup(self):
    refuse_mappings(self, 'wt')
    self._create_norms('', self.input_dims)
    self._create_self_attention()
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

  def _create_self_attention(self):
    self._create_attention('self_attention', 'tr_atten_tpl', self.tr_atten_tpl)

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
      ngrammer_tpl=self.ngrammer_tpl if name == 'self_attention' else None,
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

  @attention_masks.takes_structure
  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    attention_mask: Mask = None,
    cross_inputs: jax.Array | None = None,
    cross_attention_mask: Mask = None,
    segment_pos: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    *,
    cross_segment_pos: jax.Array | None = None,
  ) -> tuple[jax.Array, NestedMap]:
    """Computes the layer.

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      attention_mask: the mask of self-attention for paddings and packing;
        `mask_self_attention` adds the causal one. None masks paddings.
      cross_inputs: [B, S, D], the other sequence.
      cross_attention_mask: the mask of cross-attention, or None.
      segment_pos: [B, T], the position of each token within its example; None
        for 0, 1, ...
      segment_ids: [B, T], the packed example of each position, for experts with
        sentence-level gating; attention uses `attention_mask`.
      cross_segment_pos: [B, S], the positions of the other sequence.

    Returns:
      [B, T, D]; and `self_atten`, and `cross_atten` if there is
      cross-attention: the attentions' weights [B, N, T, S], or None where an
      attention does not return them; see its `return_atten_probs`.

    Raises:
      UserError: cross_inputs are missing.
    """
    if attention_mask is None and paddings is not None:
      attention_mask = attention_masks.padding_mask(paddings)
    mask = self._mask(attention_mask).restricted(
      causal=self.mask_self_attention
    )
    cross_mask = self._mask(cross_attention_mask)
    probs = NestedMap()
    attend = self._within(mask, segment_pos, probs)
    across = None
    if self._crosses(given=cross_inputs is not None):
      across = self._across(
        cross_inputs, cross_mask, segment_pos, cross_segment_pos, probs
      )
    outputs = self._compute(
      inputs,
      paddings,
      attend,
      across,
      segment_ids=segment_ids,
    )
    return outputs, probs

  def _within(
    self,
    mask: AttentionMask,
    segment_pos: jax.Array | None,
    probs: NestedMap,
  ) -> Callable[[jax.Array], jax.Array]:
    """Returns the self-attention of an input, which sets `probs`."""

    def attend(x):
      attention = self.self_attention
      outputs, probs.self_atten = attention(
        x,
        x,
        x,
        attention_masks.fit(attention, mask, x.shape[1], x.shape[1]),
        query_segment_pos=segment_pos,
        key_segment_pos=segment_pos,
      )
      return outputs

    return attend

  def _across(
    self,
    cross_inputs: jax.Array,
    mask: AttentionMask,
    segment_pos: jax.Array | None,
    cross_segment_pos: jax.Array | None,
    probs: NestedMap,
  ) -> Callable[[jax.Array], jax.Array]:
    """Returns the cross-attention of queries, which sets `probs`."""

    def attend_across(x):
      attention, sources = self.cross_attention, cross_inputs.shape[1]
      outputs, probs.cross_atten = attention(
        x,
        cross_inputs,
        cross_inputs,
        attention_masks.fit(attention, mask, x.shape[1], sources),
        query_segment_pos=segment_pos,
        key_segment_pos=cross_segment_pos,
      )
      return outputs

    return attend_across

  def _mask(self, mask: Mask) -> AttentionMask:
    return AttentionMask.of(mask, where=type(self).__name__)

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
    hidden = self._attended(inputs, attend, attend_across)
    if self.tr_fflayer_tpl is not None:
      kwargs = {} if segment_ids is None else {'segment_ids': segment_ids}
      hidden = self.ff_layer(hidden, paddings, **kwargs)
    return self._as_output(hidden)

  def _attended(
    self,
    inputs: jax.Array,
    attend: Callable[[jax.Array], jax.Array],
    attend_across: Callable[[jax.Array], jax.Array] | None,
  ) -> jax.Array:
    """Returns the outputs of the attentions with their residuals."""
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
    return hidden

  def _as_output(self, hidden: jax.Array) -> jax.Array:
    """Normalises the output, if it is normalised, and shards it."""
    if self.output_norm_tpl is not None:
      hidden = self.output_norm(hidden)
    return self.shard(hidden, self.activation_split_dims_mapping.out)

  def init_states(
    self,
    target_batch_size: int,
    target_max_length: int,
    *,
    cross_inputs: jax.Array | None = None,
  ):
    """Initialises the decode states, before the first `extend_step`.

    Args:
      target_batch_size: B.
      target_max_length: maximum number of decoded positions.
      cross_inputs: [B, S, D], the other sequence.
    """
    crosses = self._crosses(given=cross_inputs is not None)
    self._init_self_attention(target_batch_size, target_max_length)
    if crosses:
      self.cross_attention.init_cross_states(cross_inputs)

  def _init_self_attention(self, batch_size: int, max_length: int):
    self.self_attention.init_states(batch_size, max_length)

  def _layers_with_states(self) -> Sequence[base_layer.BaseLayer]:
    return [self.self_attention]

  def transform_decode_state(self, transform_fn: StateFn):
    super().transform_decode_state(transform_fn)
    if hasattr(self._cross_attention, 'transform_cross_states'):
      self._cross_attention.transform_cross_states(transform_fn)

  def lazy_broadcast_prefix(self, num_suffix_samples: int, suffix_length: int):
    super().lazy_broadcast_prefix(num_suffix_samples, suffix_length)
    if hasattr(self._cross_attention, 'transform_cross_states'):
      repeat = repeat_rows(num_suffix_samples)
      self._cross_attention.transform_cross_states(repeat)

  @property
  def _cross_attention(self) -> base_layer.BaseLayer | None:
    return self.cross_attention if self.use_cross_attention else None

  def decoding_sequence_length(self) -> int:
    """Returns the maximum number of decoded positions."""
    return self.self_attention.decoding_state_sequence_length()

  @attention_masks.takes_structure
  def extend_step(
    self,
    inputs: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    attention_mask: Mask = None,
    cross_attention_mask: Mask = None,
  ) -> jax.Array:
    """Computes the layer at new positions, which attend to all earlier ones.

    Args:
      inputs: [B, L, D]; or [B, D], a single position.
      time_step: [], the index of the first new position.
      segment_pos: [B, L] or [B], the position of each token within its example;
        None for `time_step`, `time_step + 1`, ...
      attention_mask: of new positions by all positions, [B, N, L, max_length],
        or [B, 1, max_length] with a single one; None is causal.
      cross_attention_mask: of new positions by those of the other sequence,
        [B, N, L, S]; or None.

    Returns:
      [B, L, D], or [B, D] for a single position.
    """
    if inputs.ndim == 2:
      return self.extend_step(
        inputs[:, None],
        time_step=time_step,
        segment_pos=None if segment_pos is None else segment_pos[:, None],
        attention_mask=attention_masks.with_steps(attention_mask),
        cross_attention_mask=cross_attention_mask,
      )[:, 0]
    if segment_pos is None:
      segment_pos = (time_step + jnp.arange(inputs.shape[1]))[None]
    if attention_mask is None:
      attention_mask = attention_masks.CAUSAL

    def attend(x):
      return self._self_attention_step(
        x, attention_mask, time_step, segment_pos
      )

    def attend_across(x):
      return self.cross_attention.extend_step(
        x,
        atten_mask=cross_attention_mask,
        time_step=time_step,
        segment_pos=segment_pos,
        is_cross_attention=True,
      )

    crosses = self.use_cross_attention and (
      not self.allow_skip_cross_attention
      or any(
        self.cross_attention.has_variable(DECODE_CACHE, name)
        for name in ('cross_key_state', 'key_state')
      )
    )
    return self._compute(
      inputs, None, attend, attend_across if crosses else None
    )

  def _self_attention_step(
    self,
    x: jax.Array,
    atten_mask: Mask,
    time_step: jax.Array,
    segment_pos: jax.Array,
  ) -> jax.Array:
    """Returns the self-attention of new positions [B, L, D]."""
    return self.self_attention.extend_step(
      x, atten_mask=atten_mask, time_step=time_step, segment_pos=segment_pos
    )
