"""A Transformer encoder-decoder.

Shapes: B batch, S source time, T target time, L new tokens of a decoding step,
D model dims, V vocabulary.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import embedding_softmax
from pax_compat.layers.attentions import attention_decoding
from pax_compat.layers.attentions.attention_masks import Mask, with_steps
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.template_fields import refuse_mappings
from pax_compat.layers.transformer_models import (
  ngrammer_inputs,
  transformer_sharding,
)
from pax_compat.layers.transformer_models.transformer_lm import (
  positions_in_segments,
)
from pax_compat.nested_map import NestedMap


class TransformerEncoderDecoder(transformer_sharding.TransformerModel):
  """An encoder of a source sequence, and a decoder that predicts a target.

  Source tokens are embedded by `encoder_embedding_tpl`, else like target
  tokens: by `decoder_embedding_tpl`, else by the softmax.

  Attributes:
    model_dims: D.
    packed_input: whether examples are packed, so that segment ids are required.
    position_emb_tpl: the position embedding of both; None if they are separate
      or there is none.
    encoder_position_emb_tpl: of the source; None uses `position_emb_tpl`.
    decoder_position_emb_tpl: of the target; None uses `position_emb_tpl`.
    encoder_embedding_tpl: the embedding of source tokens, or None.
    decoder_embedding_tpl: the embedding of target tokens, or None.
    encoder_stacked_transformer_tpl: the encoder: a `StackedTransformer` or a
      `StackedTransformerRepeated`.
    decoder_stacked_transformer_tpl: the decoder, likewise; it is made causal,
      with cross-attention to the encoder's output.
    encoder_ln_tpl: a normalisation of the encoder's output, or None.
    decoder_ln_tpl: a normalisation of the decoder's output, or None.
    softmax_tpl: the projection to the vocabulary and its loss.
    encoder_ngrammer_tpl: adds embeddings of pairs to embedded source tokens,
      before their positions: an `Ngrammer` or `VQNgrammer`; or None.
    decoder_ngrammer_tpl: likewise, of target tokens.
    encoder_post_attention_ngrammer_tpls: has no effect, as in Pax, which sets
      them on a config that it has copied before; a warning says so. The field
      `ngrammer_tpls` of the stack has one.
    decoder_post_attention_ngrammer_tpls: likewise.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *transformer_sharding.TransformerModel.SILENT_UNLESS_SET,
    'encoder_ngrammer_tpl',
    'decoder_ngrammer_tpl',
    'encoder_post_attention_ngrammer_tpls',
    'decoder_post_attention_ngrammer_tpls',
  )

  SHARDED_TEMPLATES: ClassVar = transformer_sharding.Templates(
    stacks=[
      'encoder_stacked_transformer_tpl',
      'decoder_stacked_transformer_tpl',
    ],
    vocabularies=[
      'softmax_tpl',
      'encoder_embedding_tpl',
      'decoder_embedding_tpl',
    ],
    positions=[
      'position_emb_tpl',
      'encoder_position_emb_tpl',
      'decoder_position_emb_tpl',
    ],
    ngrammers=['encoder_ngrammer_tpl', 'decoder_ngrammer_tpl'],
  )

  model_dims: int = REQUIRED
  packed_input: bool = False
  position_emb_tpl: Config | None = sub_config_field(
    positional_embeddings.PositionalEmbedding
  )
  encoder_position_emb_tpl: Config | None = None
  decoder_position_emb_tpl: Config | None = None
  encoder_embedding_tpl: Config | None = None
  decoder_embedding_tpl: Config | None = None
  encoder_stacked_transformer_tpl: Config = REQUIRED
  decoder_stacked_transformer_tpl: Config = REQUIRED
  encoder_ln_tpl: Config | None = sub_config_field(norm_layers.LayerNorm)
  decoder_ln_tpl: Config | None = sub_config_field(norm_layers.LayerNorm)
  softmax_tpl: Config = sub_config_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )
  encoder_ngrammer_tpl: Config | None = None
  decoder_ngrammer_tpl: Config | None = None
  encoder_post_attention_ngrammer_tpls: Sequence[Config] | None = None
  decoder_post_attention_ngrammer_tpls: Sequence[Config] | None = None

  @classmethod
  def set_sharding_params_v1(cls, model_p: Config, **axes) -> Config:
    """As in the base class; Pax calls the config `model_p` here."""
    return super().set_sharding_params_v1(model_p, **axes)

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    dims = self.model_dims
    self._check_positions()
    self._warn_of_ngrammers()
    for field in (
      'position_emb_tpl',
      'encoder_position_emb_tpl',
      'decoder_position_emb_tpl',
    ):
      self._create(field.removesuffix('_tpl'), field, embedding_dims=dims)
    for side in ('encoder', 'decoder'):
      pairs = getattr(self, f'{side}_ngrammer_tpl')
      if pairs is not None:
        self.create_child(f'{side}_ngrammer', pairs)
      field = f'{side}_embedding_tpl'
      self._create(f'{side}_embedding_lookup', field, input_dims=dims)
      self._create(f'{side}_ln', f'{side}_ln_tpl', dim=dims)
    stack = dict(model_dims=dims, packed_input=self.packed_input or None)
    self._create(
      'encoder',
      'encoder_stacked_transformer_tpl',
      mask_self_attention=False,
      use_cross_attention=False,
      **stack,
    )
    self._create(
      'decoder',
      'decoder_stacked_transformer_tpl',
      mask_self_attention=True,
      use_cross_attention=True,
      **stack,
    )
    self._create('softmax', 'softmax_tpl', input_dims=dims)

  def _warn_of_ngrammers(self):
    fields = [
      field
      for field in self.SILENT_UNLESS_SET
      if 'post_attention' in field and getattr(self, field) is not None
    ]
    if fields:
      logging.log_first_n(
        logging.WARNING,
        'TransformerEncoderDecoder: no effect, as in Pax: %s; the field'
        ' ngrammer_tpls of a stack adds n-grams after attention',
        1,
        ', '.join(fields),
      )

  def _check_positions(self):
    own = (self.encoder_position_emb_tpl, self.decoder_position_emb_tpl)
    if self.position_emb_tpl is not None and own != (None, None):
      raise errors.UserError(
        'TransformerEncoderDecoder has a position_emb_tpl, which encoder and'
        ' decoder share, and separate ones too; expected one or the other'
      )

  def __call__(
    self,
    inputs: jax.Array,
    input_paddings: jax.Array,
    targets: jax.Array,
    target_paddings: jax.Array,
    labels: NestedMap | None = None,
    input_segment_ids: jax.Array | None = None,
    input_segment_pos: jax.Array | None = None,
    input_segment_mask: Mask = None,
    target_segment_ids: jax.Array | None = None,
    target_segment_pos: jax.Array | None = None,
    target_segment_mask: Mask = None,
    cross_segment_mask: Mask = None,
    start_time_step: int = 0,
  ) -> NestedMap:
    """Computes the cross-entropy loss of the target, or predictions.

    Args:
      inputs: [B, S], int, the source tokens.
      input_paddings: [B, S], 1 where a position is padding.
      targets: [B, T], int, the input tokens of the decoder.
      target_paddings: [B, T], 1 where a position is padding.
      labels: see `TransformerLm.__call__`.
      input_segment_ids: [B, S], the packed example of each token.
      input_segment_pos: [B, S], the position of each token within its example;
        None computes it from the segment ids.
      input_segment_mask: the mask of packed examples in place of the segment
        ids, [B, 1, S, S]; see `AttentionMask.of`.
      target_segment_ids: [B, T], likewise.
      target_segment_pos: [B, T], likewise.
      target_segment_mask: [B, 1, T, T], likewise.
      cross_segment_mask: [B, 1, T, S], likewise.
      start_time_step: the index of the first position that later decoding steps
        read.

    Returns:
      As `TransformerLm.__call__`.

    Raises:
      UserError: segment ids are missing.
    """
    encoded = self.encode(
      inputs,
      input_paddings,
      input_segment_ids,
      input_segment_pos,
      input_segment_mask,
    )
    return self.fprop_with_encoder_output(
      encoded,
      input_paddings,
      targets,
      target_paddings,
      labels,
      input_segment_ids,
      input_segment_pos,
      target_segment_ids,
      target_segment_pos,
      target_segment_mask,
      cross_segment_mask,
      start_time_step,
    )

  def fprop_with_encoder_output(
    self,
    encoder_output: jax.Array,
    input_paddings: jax.Array,
    targets: jax.Array,
    target_paddings: jax.Array,
    labels: NestedMap | None = None,
    input_segment_ids: jax.Array | None = None,
    input_segment_pos: jax.Array | None = None,
    target_segment_ids: jax.Array | None = None,
    target_segment_pos: jax.Array | None = None,
    target_segment_mask: Mask = None,
    cross_segment_mask: Mask = None,
    start_time_step: int = 0,
  ) -> NestedMap:
    """Computes the loss, or predictions, from the encoder's output [B, S, D].

    For the other arguments see `__call__`.
    """
    if self._keeps_states():
      self._store_time_step(start_time_step)
      self._store_previous(targets, start_time_step)
      self.update_decode_state('input_paddings', input_paddings, shared=True)
    target_segment_pos = _positions(target_segment_ids, target_segment_pos)
    by_mask = target_segment_mask is not None and cross_segment_mask is not None
    hidden = self.decoder(
      self._embed('decoder', targets, target_segment_pos, target_paddings),
      target_paddings,
      segment_mask=target_segment_mask,
      segment_ids=None if by_mask else target_segment_ids,
      segment_pos=target_segment_pos,
      cross_inputs=encoder_output,
      cross_paddings=input_paddings,
      cross_segment_mask=cross_segment_mask,
      cross_segment_ids=None if by_mask else input_segment_ids,
      cross_segment_pos=_positions(input_segment_ids, input_segment_pos),
    )
    return self.compute_loss(self._normalize('decoder', hidden), labels)

  def encode(
    self,
    inputs: jax.Array,
    input_paddings: jax.Array,
    input_segment_ids: jax.Array | None = None,
    input_segment_pos: jax.Array | None = None,
    input_segment_mask: Mask = None,
  ) -> jax.Array:
    """Returns the encoder's output [B, S, D]; for arguments see `__call__`."""
    positions = _positions(input_segment_ids, input_segment_pos)
    with attention_decoding.without_cache():
      hidden = self.encoder(
        self._embed('encoder', inputs, positions, input_paddings),
        input_paddings,
        segment_mask=input_segment_mask,
        segment_ids=input_segment_ids if input_segment_mask is None else None,
        segment_pos=positions,
      )
    return self._normalize('encoder', hidden)

  def _embed(
    self,
    side: str,
    ids: jax.Array,
    positions: jax.Array | None,
    paddings: jax.Array,
  ) -> jax.Array:
    """Returns the inputs of a side's first layer, [B, T, D].

    Args:
      side: 'encoder' or 'decoder'.
      ids: [B, T].
      positions: [B, T]; None for 0, 1, ...
      paddings: [B, T].
    """
    vectors = self._look_up(side, ids)
    if getattr(self, f'{side}_ngrammer_tpl') is not None:
      vectors = ngrammer_inputs.add_ngrams(
        getattr(self, f'{side}_ngrammer'), ids, vectors, paddings, positions
      )
    return self._with_positions(side, vectors, positions)

  def _embed_step(self, ids: jax.Array, positions: jax.Array) -> jax.Array:
    """Returns the inputs of the decoder's first layer in a step, [B, L, D]."""
    vectors = self._look_up('decoder', ids)
    if self.decoder_ngrammer_tpl is not None:
      vectors = ngrammer_inputs.extend(
        self, self.decoder_ngrammer, ids, vectors, positions
      )
    return self._with_positions('decoder', vectors, positions)

  def _store_previous(self, ids: jax.Array, time_step: jax.Array | int):
    """Stores the target token before a position, for n-grams of steps."""
    if self.decoder_ngrammer_tpl is not None:
      ngrammer_inputs.store_previous(
        self, ids, self._look_up('decoder', ids), time_step
      )

  def _last_of_context(self, ids: jax.Array) -> jax.Array:
    """Returns the last tokens [B] of [B, L], of which the others are kept."""
    if ids.ndim == 1:
      return ids
    if ids.shape[1] > 1:
      self._store_previous(ids, ids.shape[1] - 1)
    return ids[:, -1]

  def _look_up(self, side: str, ids: jax.Array) -> jax.Array:
    """Returns the embedded tokens of a side, [B, T, D]."""
    embedding = self._embedding(side)
    if not hasattr(type(embedding), 'emb_lookup'):
      raise errors.UserError(
        f'TransformerEncoderDecoder.softmax_tpl: a {type(embedding).__name__}'
        ' has no embedding; expected decoder_embedding_tpl to be set, or a'
        ' SharedEmbeddingSoftmax'
      )
    return embedding.emb_lookup(ids)

  def _with_positions(
    self, side: str, vectors: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    """Adds the position embeddings of a side to vectors [B, T, D].

    Args:
      side: 'encoder' or 'decoder'.
      vectors: [B, T, D].
      positions: [B, T]; None for 0, 1, ...
    """
    for name in ('position_emb', f'{side}_position_emb'):
      if getattr(self, f'{name}_tpl') is not None:
        vectors = vectors + getattr(self, name)(
          seq_length=vectors.shape[1] if positions is None else None,
          position=positions,
        )
    return vectors

  def _embedding(self, side: str) -> base_layer.BaseLayer:
    if side == 'encoder' and self.encoder_embedding_tpl is not None:
      return self.encoder_embedding_lookup
    if self.decoder_embedding_tpl is not None:
      return self.decoder_embedding_lookup
    return self.softmax

  def _normalize(self, side: str, hidden: jax.Array) -> jax.Array:
    if getattr(self, f'{side}_ln_tpl') is None:
      return hidden
    return getattr(self, f'{side}_ln')(hidden)

  def compute_loss(
    self, activations: jax.Array, labels: NestedMap | None = None
  ) -> NestedMap:
    """Computes the loss, or predictions; see `__call__`.

    Args:
      activations: [B, T, D], the softmax's input.
      labels: the targets; None for predictions.
    """
    output = sequence_losses.loss_or_predictions(
      self.softmax, activations, labels
    )
    if labels is not None:
      self._add_aux_loss(output)
    return output

  def init_states(
    self, inputs: jax.Array, input_paddings: jax.Array, *, max_length: int
  ):
    """Encodes the source, and initialises the decode states of the target.

    Args:
      inputs: [B, S], int, the source tokens, which are not packed.
      input_paddings: [B, S], 1 where a position is padding.
      max_length: maximum number of decoded positions.
    """
    segments = {}
    if self.packed_input:  # As in training, with one example per row.
      segments = dict(
        input_segment_ids=(input_paddings == 0).astype(jnp.int32),
        input_segment_pos=jnp.arange(inputs.shape[1])[None],
      )
    encoded = self.encode(inputs, input_paddings, **segments)
    self._store_time_step(0)
    self.update_decode_state('input_paddings', input_paddings, shared=True)
    self._store_previous(jnp.zeros((inputs.shape[0], 1), jnp.int32), 0)
    self.decoder.init_states(inputs.shape[0], max_length, cross_inputs=encoded)

  def _layers_with_states(self) -> Sequence[base_layer.BaseLayer]:
    return [self.decoder]

  def extend_step(
    self,
    targets: jax.Array,
    *,
    time_step: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
  ) -> NestedMap:
    """Runs a decoding step; see `TransformerLm.extend_step`.

    Args:
      targets: [B, L] or [B], int, the new tokens, or a single one. As the only
        argument, as in Pax, only the last of [B, L] is new, and those before it
        are its context for n-grams.
      time_step: [], the index of the first of the new tokens; None for the one
        after the last step.
      segment_pos: [B, L], the position of each token; None for `time_step`,
        `time_step + 1`, ...
      atten_mask: of self attention, [B, N, L, max_length]; None is causal.

    Returns:
      `logits`, `log_probs` and `probs`, [B, L, V] or [B, V].
    """
    if all(x is None for x in (time_step, segment_pos, atten_mask)):
      targets = self._last_of_context(targets)
    if time_step is None:
      time_step = self.get_decode_state('time_step')
    if targets.ndim == 1:
      predicted = self.extend_step(
        targets[:, None],
        time_step=time_step,
        segment_pos=None if segment_pos is None else segment_pos[:, None],
        atten_mask=with_steps(atten_mask),
      )
      return jax.tree.map(lambda x: x[:, 0], predicted)
    if segment_pos is None:
      segment_pos = (time_step + jnp.arange(targets.shape[1]))[None]
    hidden = self.decoder.extend_step(
      self._embed_step(targets, segment_pos),
      time_step=time_step,
      segment_pos=segment_pos,
      atten_mask=atten_mask,
      cross_paddings=self.get_decode_state('input_paddings'),
    )
    self._store_time_step(time_step + targets.shape[1])
    return self.compute_loss(self._normalize('decoder', hidden))


def _positions(
  segment_ids: jax.Array | None, segment_pos: jax.Array | None
) -> jax.Array | None:
  """Returns the positions of packed tokens, or None for 0, 1, ..."""
  if segment_ids is not None and segment_pos is None:
    return positions_in_segments(segment_ids)
  return segment_pos
