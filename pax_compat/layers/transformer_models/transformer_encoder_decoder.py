"""A Transformer that maps one sequence of tokens to another.

Shapes: B batch, S source time, T target time, L steps of decoding, D model
dims, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import embedding_softmax
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformer_models import (
  transformer_sharding as sharding,
)
from pax_compat.layers.transformer_models.transformer_lm import (
  positions_in_segments,
)
from pax_compat.nested_map import NestedMap


class TransformerEncoderDecoder(base_layer.BaseLayer):
  """An encoder that sees a source, and a decoder that predicts a target.

  Tokens of the source are embedded by `encoder_embedding_tpl`, or else as those
  of the target are: by `decoder_embedding_tpl`, or else by the softmax.

  Attributes:
    model_dims: D.
    packed_input: whether examples are packed, so that segment ids are needed.
    position_emb_tpl: the embedding of positions of both; None if each has its
      own, or none.
    encoder_position_emb_tpl: of the source; None takes `position_emb_tpl`.
    decoder_position_emb_tpl: of the target; None takes `position_emb_tpl`.
    encoder_embedding_tpl: the embedding of the source's tokens, or None.
    decoder_embedding_tpl: the embedding of the target's tokens, or None.
    encoder_stacked_transformer_tpl: the encoder's layers: a
      `StackedTransformer` or a `StackedTransformerRepeated`.
    decoder_stacked_transformer_tpl: likewise the decoder's, which attend to
      what the encoder returns and are hidden from earlier ones.
    encoder_ln_tpl: a normalisation of what the encoder returns, or None.
    decoder_ln_tpl: a normalisation of what the decoder returns, or None.
    softmax_tpl: the projection onto the vocabulary and its loss.
  """

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

  @classmethod
  def set_sharding_params_v1(cls, model_p: Config, **axes) -> Config:
    """Says how a model is split over a mesh of replicas, data and model.

    Args:
      model_p: config of a `TransformerEncoderDecoder`.
      **axes: see `transformer_sharding.canonical_shardings`.

    Returns:
      `model_p`, changed.
    """
    shardings = sharding.canonical_shardings(**axes)
    return sharding.split_encoder_decoder(model_p, **shardings)

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    dims = self.model_dims
    self._check_positions()
    for field in (
      'position_emb_tpl',
      'encoder_position_emb_tpl',
      'decoder_position_emb_tpl',
    ):
      self._create(field.removesuffix('_tpl'), field, embedding_dims=dims)
    for side in ('encoder', 'decoder'):
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

  def _check_positions(self):
    own = (self.encoder_position_emb_tpl, self.decoder_position_emb_tpl)
    if self.position_emb_tpl is not None and own != (None, None):
      raise errors.UserError(
        'TransformerEncoderDecoder has a position_emb_tpl, which encoder and'
        ' decoder share, and one for each of them; expected one or the other'
      )

  def _create(self, name: str, field: str, **fields):
    """Creates the child of the template in `field`, if there is one."""
    tpl = getattr(self, field)
    if tpl is not None:
      where = f'TransformerEncoderDecoder.{field}'
      self.create_child(name, tpl, **agreed(where, tpl, **fields))

  def __call__(
    self,
    inputs: jax.Array,
    input_paddings: jax.Array,
    targets: jax.Array,
    target_paddings: jax.Array,
    labels: NestedMap | None = None,
    input_segment_ids: jax.Array | None = None,
    input_segment_pos: jax.Array | None = None,
    target_segment_ids: jax.Array | None = None,
    target_segment_pos: jax.Array | None = None,
  ) -> NestedMap:
    """Computes the loss of predicting the target, or probabilities.

    Args:
      inputs: [B, S], int, the tokens of the source.
      input_paddings: [B, S], 1 where a position is padding.
      targets: [B, T], int, the tokens of the target that the decoder sees.
      target_paddings: [B, T], 1 where a position is padding.
      labels: what to predict: `class_weights` [B, T], and `class_ids` [B, T]
        int or `class_probabilities` [B, T, V]; None for no loss.
      input_segment_ids: [B, S], the packed example that each token belongs to.
      input_segment_pos: [B, S], the position of each token within its example;
        None counts from its beginning.
      target_segment_ids: [B, T], likewise.
      target_segment_pos: [B, T], likewise.

    Returns:
      With labels what the softmax returns, and `per_token_xent` [B, T],
      `per_sequence_xent` [B] and `total_loss` []; without them `logits`,
      `log_probs` and `probs` [B, T, V].

    Raises:
      UserError: segment ids are missing.
    """
    encoded = self.encode(
      inputs, input_paddings, input_segment_ids, input_segment_pos
    )
    target_segment_pos = _positions(target_segment_ids, target_segment_pos)
    hidden = self.decoder(
      self._embed('decoder', targets, target_segment_pos),
      target_paddings,
      segment_ids=target_segment_ids,
      segment_pos=target_segment_pos,
      cross_inputs=encoded,
      cross_paddings=input_paddings,
      cross_segment_ids=input_segment_ids,
      cross_segment_pos=_positions(input_segment_ids, input_segment_pos),
    )
    return self.compute_loss(self._normalize('decoder', hidden), labels)

  def encode(
    self,
    inputs: jax.Array,
    input_paddings: jax.Array,
    input_segment_ids: jax.Array | None = None,
    input_segment_pos: jax.Array | None = None,
  ) -> jax.Array:
    """Returns what the decoder sees of the source, [B, S, D].

    Args:
      inputs: [B, S], int, the tokens of the source.
      input_paddings: [B, S], 1 where a position is padding.
      input_segment_ids: [B, S], as for `__call__`.
      input_segment_pos: [B, S], as for `__call__`.
    """
    positions = _positions(input_segment_ids, input_segment_pos)
    hidden = self.encoder(
      self._embed('encoder', inputs, positions),
      input_paddings,
      segment_ids=input_segment_ids,
      segment_pos=positions,
    )
    return self._normalize('encoder', hidden)

  def _embed(
    self, side: str, ids: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    """Returns what the layers of a side get, [B, T, D].

    Args:
      side: 'encoder' or 'decoder'.
      ids: [B, T].
      positions: [B, T]; None for 0, 1, ...
    """
    embedding = self._embedding(side)
    if not hasattr(type(embedding), 'emb_lookup'):
      raise errors.UserError(
        f'TransformerEncoderDecoder.softmax_tpl: a {type(embedding).__name__}'
        ' has no embedding; expected decoder_embedding_tpl to be set, or a'
        ' SharedEmbeddingSoftmax'
      )
    vectors = embedding.emb_lookup(ids)
    for name in ('position_emb', f'{side}_position_emb'):
      if getattr(self, f'{name}_tpl') is not None:
        vectors = vectors + getattr(self, name)(
          seq_length=ids.shape[1] if positions is None else None,
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
    """Computes the loss, or probabilities; see `__call__`.

    Args:
      activations: [B, T, D], what the softmax gets.
      labels: what to predict; None for no loss.
    """
    if labels is None:
      logits = self.softmax.get_logits(activations)
      return sequence_losses.predictions(logits)
    return sequence_losses.xent(self.softmax, activations, labels)

  def init_states(
    self, inputs: jax.Array, input_paddings: jax.Array, *, max_length: int
  ):
    """Encodes the source and makes room to decode the target.

    Args:
      inputs: [B, S], int, the tokens of the source, which are not packed.
      input_paddings: [B, S], 1 where a position is padding.
      max_length: up to how many positions are decoded.
    """
    alone = {}
    if self.packed_input:  # As in training, with one example in each row.
      alone = dict(
        input_segment_ids=(input_paddings == 0).astype(jnp.int32),
        input_segment_pos=jnp.arange(inputs.shape[1])[None],
      )
    encoded = self.encode(inputs, input_paddings, **alone)
    self.update_decode_state('input_paddings', input_paddings)
    self.decoder.init_states(inputs.shape[0], max_length, cross_inputs=encoded)

  def extend_step(
    self, targets: jax.Array, *, time_step: jax.Array
  ) -> jax.Array:
    """Predicts from new tokens of the target and all before them.

    Args:
      targets: [B, L], int, the tokens.
      time_step: [], the index of the first of them.

    Returns:
      Logits [B, L, V] of the tokens after each.
    """
    positions = (time_step + jnp.arange(targets.shape[1]))[None]
    hidden = self.decoder.extend_step(
      self._embed('decoder', targets, positions),
      time_step=time_step,
      segment_pos=positions,
      cross_paddings=self.get_decode_state('input_paddings'),
    )
    return self.softmax.get_logits(self._normalize('decoder', hidden))


def _positions(
  segment_ids: jax.Array | None, segment_pos: jax.Array | None
) -> jax.Array | None:
  """Returns the position of each token, if it is not its index."""
  if segment_ids is not None and segment_pos is None:
    return positions_in_segments(segment_ids)
  return segment_pos
