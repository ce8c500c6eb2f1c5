"""A Transformer language model.

Shapes: B batch, T time, L new tokens of a decoding step, D model dims, V
vocabulary.
"""

import enum
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import embedding_softmax, stochastics
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
  Mask,
  causal_mask,
  step_mask,
)
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.template_fields import refuse_mappings
from pax_compat.layers.transformer_models import (
  ngrammer_inputs,
  transformer_sharding,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from pax_compat.nested_map import NestedMap


class LanguageModelType(enum.StrEnum):
  """The tokens that a token attends to.

  Attributes:
    CAUSAL: itself and earlier ones.
    PREFIX: itself, earlier ones, and all of the prefix.
    BIDIRECTIONAL: all.
  """

  CAUSAL = 'causal'
  PREFIX = 'prefix'
  BIDIRECTIONAL = 'bidirectional'


def positions_in_segments(segment_ids: jax.Array) -> jax.Array:
  """Returns the position [B, T] of each token within its packed example.

  >>> print(positions_in_segments(jnp.array([[1, 1, 1, 2, 2, 0]])))
  [[0 1 2 0 1 0]]

  Args:
    segment_ids: [B, T], the packed example of each token; examples are
      contiguous.
  """
  index = jnp.arange(segment_ids.shape[1])
  first = segment_ids[:, 1:] != segment_ids[:, :-1]
  first = jnp.pad(first, ((0, 0), (1, 0)), constant_values=True)
  return index - jax.lax.cummax(jnp.where(first, index, 0), axis=1)


class TransformerLm(transformer_sharding.TransformerModel):
  """A Transformer that predicts tokens.

  Attributes:
    vocab_size: V.
    model_dims: D.
    model_type: the tokens that a token attends to; a `LanguageModelType` or its
      name.
    packed_input: whether examples are packed, and come with segment ids.
    order_by_position: whether the causal mask compares `segment_pos` instead of
      indices: a token attends to all tokens of the same or an earlier position.
      Decoding steps attend to all earlier steps nevertheless.
    position_emb_tpl: the position embedding; None for no embedding.
    separate_embedding_tpl: the token embedding; None uses that of a softmax
      with shared weights.
    ngrammer_tpl: adds embeddings of pairs to the embedded tokens, before their
      positions: an `Ngrammer` or `VQNgrammer`; or None.
    post_attention_ngrammer_tpls: the `ngrammer_tpls` of the layers, or None.
    input_dropout_prob: dropout probability of the embedded input.
    stacked_transformer_tpl: the layers: a `StackedTransformer` or
      `StackedTransformerRepeated`.
    final_ln_tpl: a normalisation of the layers' output, or None.
    output_dropout_prob: dropout probability of the softmax's input.
    softmax_tpl: the projection to the vocabulary and its loss.
    entropy_loss_weight: factor of the predictions' mean negative entropy, added
      to `total_loss`; None adds nothing.
    skip_compute_loss: whether `__call__` returns the layers' output [B, T, D]
      instead of the loss.
    record_activations_in_xent_output: whether the output has `activations`, the
      softmax's input.
    record_logits_in_xent_output: whether the output has `logits`, even if the
      loss is computed without them.
  """

  SHARDED_TEMPLATES: ClassVar = transformer_sharding.Templates(
    stacks=['stacked_transformer_tpl'],
    vocabularies=['softmax_tpl', 'separate_embedding_tpl'],
    positions=['position_emb_tpl'],
    ngrammers=['ngrammer_tpl'],
  )

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *transformer_sharding.TransformerModel.SILENT_UNLESS_SET,
    'ngrammer_tpl',
    'post_attention_ngrammer_tpls',
  )

  vocab_size: int = REQUIRED
  model_dims: int = REQUIRED
  model_type: str = LanguageModelType.CAUSAL
  packed_input: bool = False
  order_by_position: bool = False
  position_emb_tpl: Config | None = sub_config_field(
    positional_embeddings.PositionalEmbedding
  )
  separate_embedding_tpl: Config | None = None
  input_dropout_prob: float = 0.0
  stacked_transformer_tpl: Config = sub_config_field(StackedTransformer)
  final_ln_tpl: Config | None = sub_config_field(norm_layers.LayerNorm)
  output_dropout_prob: float = 0.0
  softmax_tpl: Config = sub_config_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )
  entropy_loss_weight: float | None = None
  skip_compute_loss: bool = False
  record_activations_in_xent_output: bool = False
  record_logits_in_xent_output: bool = False
  ngrammer_tpl: Config | None = None
  post_attention_ngrammer_tpls: Sequence[Config] | None = None

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    errors.check_choice(self, 'model_type', LanguageModelType)
    if self.order_by_position and self.model_type != LanguageModelType.CAUSAL:
      raise errors.UserError(
        'TransformerLm.order_by_position is only for the model_type'
        f' {LanguageModelType.CAUSAL.value!r}; this one is'
        f' {str(self.model_type)!r}'
      )
    dims, classes = self.model_dims, self.vocab_size
    if self.ngrammer_tpl is not None:
      self.create_child('ngrammer', self.ngrammer_tpl)
    self._create('position_emb', 'position_emb_tpl', embedding_dims=dims)
    self._create(
      'embedding_lookup',
      'separate_embedding_tpl',
      input_dims=dims,
      num_classes=classes,
    )
    self._create(
      'transformer',
      'stacked_transformer_tpl',
      model_dims=dims,
      mask_self_attention=self.model_type == LanguageModelType.CAUSAL
      and not self.order_by_position,
      packed_input=self.packed_input or None,
      ngrammer_tpls=self.post_attention_ngrammer_tpls,
    )
    self._create('final_ln', 'final_ln_tpl', dim=dims)
    for name, prob in (
      ('input_dropout', self.input_dropout_prob),
      ('output_dropout', self.output_dropout_prob),
    ):
      tpl = stochastics.Dropout.config(keep_prob=1.0 - prob)
      self.create_child(name, tpl)
    self._create('softmax', 'softmax_tpl', input_dims=dims, num_classes=classes)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    labels: NestedMap | None = None,
    segment_ids: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    causal_attention_mask: jax.Array | None = None,
    segment_mask: Mask = None,
    start_time_step: int = 0,
  ) -> NestedMap | jax.Array:
    """Computes the cross-entropy loss, or predictions.

    Args:
      inputs: [B, T], int, the input tokens.
      paddings: [B, T], 1 where a position is padding.
      labels: the targets: `class_weights` [B, T], and `class_ids` [B, T] int or
        `class_probabilities` [B, T, V]; None for predictions.
      segment_ids: [B, T], the packed example of each token. None with
        `packed_input`, and without a `segment_mask`: a row is one example.
      segment_pos: [B, T], the position of each token within its example; None
        computes it from the segment ids.
      causal_attention_mask: [B, T], 0 for tokens of the prefix, to which all of
        its example attends, else 1; for the model type 'prefix' only.
      segment_mask: the mask of packed examples in place of the segment ids, or
        any additional one, [B, 1, T, T]; see `AttentionMask.of`. None for none.
      start_time_step: the index of the first position that later decoding steps
        read.

    Returns:
      With labels, the softmax's output, and `per_token_xent` [B, T],
      `per_sequence_xent` [B], `total_loss` [], and `aux_loss` [], which is part
      of it, and `aux_loss_weight` []; without labels, `logits`, `log_probs` and
      `probs` [B, T, V]. With `skip_compute_loss`, the layers' output [B, T, D].

    Raises:
      UserError: a prefix is given to another model type.
    """
    if self.packed_input and segment_ids is None and segment_mask is None:
      segment_ids = (paddings == 0).astype(jnp.int32)
      if segment_pos is None:
        segment_pos = jnp.broadcast_to(
          jnp.arange(inputs.shape[1]), inputs.shape
        )
    if segment_ids is not None and segment_pos is None:
      segment_pos = positions_in_segments(segment_ids)
    if self._keeps_states():
      self._store_time_step(start_time_step)
      self._store_prefix(inputs.shape, causal_attention_mask)
    hidden = self._apply_layers(
      self.input_dropout(
        self._embed(inputs, segment_pos, paddings, start_time_step)
      ),
      paddings,
      AttentionMask.of(segment_mask, where='TransformerLm').restricted(
        self._prefix_mask(causal_attention_mask, inputs.shape[1]),
        self._position_mask(segment_pos),
      ),
      segment_ids=segment_ids if segment_mask is None else None,
      segment_pos=segment_pos,
    )
    hidden = self.output_dropout(self._normalize(hidden))
    if self.skip_compute_loss:
      return hidden
    return self.compute_loss(hidden, labels)

  def _apply_layers(
    self,
    hidden: jax.Array,
    paddings: jax.Array,
    mask: AttentionMask,
    *,
    segment_ids: jax.Array | None,
    segment_pos: jax.Array | None,
  ) -> jax.Array:
    """Returns the layers' output [B, T, D]."""
    if attention_masks.is_structural(self.transformer):
      return self.transformer(
        hidden,
        paddings,
        segment_mask=mask.or_none(),
        segment_pos=segment_pos,
        segment_ids=segment_ids,
      )
    if segment_ids is not None:
      mask = mask.restricted(attention_masks.segment_mask(segment_ids))
    if self.model_type == LanguageModelType.CAUSAL:
      mask = mask.restricted(causal=not self.order_by_position)
    length = hidden.shape[1]
    mask = mask.restricted(attention_masks.padding_mask(paddings))
    return self.transformer(
      hidden,
      paddings,
      segment_mask=mask.additive(length, length),
      segment_pos=segment_pos,
    )

  def _embed(
    self,
    ids: jax.Array,
    positions: jax.Array | None,
    paddings: jax.Array,
    start_time_step: int,
  ) -> jax.Array:
    """Returns the first layer's inputs, [B, T, D]; see `__call__`."""
    vectors = self._look_up(ids)
    if self.ngrammer_tpl is not None:
      if self._keeps_states():
        ngrammer_inputs.store_previous(self, ids, vectors, start_time_step)
      vectors = ngrammer_inputs.add_ngrams(
        self.ngrammer, ids, vectors, paddings, positions
      )
    return self._with_positions(vectors, positions)

  def _embed_step(self, ids: jax.Array, positions: jax.Array) -> jax.Array:
    """Returns the first layer's inputs of a decoding step, [B, L, D]."""
    vectors = self._look_up(ids)
    if self.ngrammer_tpl is not None:
      vectors = ngrammer_inputs.extend(
        self, self.ngrammer, ids, vectors, positions
      )
    return self._with_positions(vectors, positions)

  def _look_up(self, ids: jax.Array) -> jax.Array:
    """Returns the embedded tokens, [B, T, D]."""
    if self.separate_embedding_tpl is not None:
      return self.embedding_lookup.emb_lookup(ids)
    if hasattr(type(self.softmax), 'emb_lookup'):
      return self.softmax.emb_lookup(ids)
    raise errors.UserError(
      f'TransformerLm.softmax_tpl: a {type(self.softmax).__name__} has no'
      ' embedding; expected separate_embedding_tpl to be set, or a'
      ' SharedEmbeddingSoftmax'
    )

  def _with_positions(
    self, vectors: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    """Adds position embeddings to vectors [B, T, D]."""
    if self.position_emb_tpl is not None:
      vectors = vectors + self.position_emb(
        seq_length=vectors.shape[1] if positions is None else None,
        position=positions,
      )
    return vectors

  def _normalize(self, hidden: jax.Array) -> jax.Array:
    return hidden if self.final_ln_tpl is None else self.final_ln(hidden)

  def _prefix_mask(
    self, causal_attention_mask: jax.Array | None, length: int
  ) -> jax.Array | None:
    """Returns the attention mask of a prefix model, [B, 1, T, T]."""
    self._check_prefix(causal_attention_mask)
    if self.model_type != LanguageModelType.PREFIX:
      return None
    visible = causal_mask(length)
    if causal_attention_mask is not None:
      visible = visible | (causal_attention_mask == 0)[:, None, None, :]
    return visible

  def _check_prefix(self, causal_attention_mask: jax.Array | None):
    prefix = LanguageModelType.PREFIX
    if causal_attention_mask is not None and self.model_type != prefix:
      raise errors.UserError(
        'TransformerLm: causal_attention_mask is only for the model_type'
        f' {prefix.value!r}; this one is {str(self.model_type)!r}'
      )

  def _position_mask(self, positions: jax.Array | None) -> jax.Array | None:
    """Returns the mask of `order_by_position`, [B, 1, T, T]."""
    if not self.order_by_position:
      return None
    if positions is None:
      raise errors.UserError(
        'TransformerLm.order_by_position is True, but segment_pos is None'
      )
    return (positions[:, :, None] >= positions[:, None, :])[:, None]

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
    if labels is not None and self.entropy_loss_weight is not None:
      entropy = sequence_losses.negative_entropy(output, labels.class_weights)
      output.avg_entropy_loss = entropy
      output.total_loss += entropy * self.entropy_loss_weight
      self.add_summary('avg_entropy_loss', entropy)
    if labels is not None:
      self._add_aux_loss(output)
    if self.record_activations_in_xent_output:
      output.activations = activations
    if self.record_logits_in_xent_output and 'logits' not in output:
      output.logits = self.softmax.get_logits(activations)
    return output

  def init_states(self, target_batch_size: int, target_max_length: int):
    """Initialises the decode states, before the first `extend_step`.

    Args:
      target_batch_size: B.
      target_max_length: maximum number of decoded positions, prefixes included.
    """
    self._store_time_step(0)
    self.transformer.init_states(target_batch_size, target_max_length)
    self._store_prefix((target_batch_size, target_max_length))
    if self.ngrammer_tpl is not None:
      ids = jnp.zeros((target_batch_size, 1), jnp.int32)
      ngrammer_inputs.store_previous(self, ids, self._look_up(ids), 0)

  STATES_BY_POSITION = ('is_prefix',)

  def _layers_with_states(self) -> Sequence[base_layer.BaseLayer]:
    return [self.transformer]

  def _store_prefix(self, shape, causal_attention_mask=None):
    """Stores which positions [B, T] are of a prefix, if the model has one."""
    if self.model_type == LanguageModelType.PREFIX:
      is_prefix = jnp.zeros(shape, bool)
      if causal_attention_mask is not None:
        is_prefix = causal_attention_mask == 0
      self.update_decode_state('is_prefix', is_prefix)

  def extend_step(
    self,
    inputs: jax.Array,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
    *,
    time_step: jax.Array | None = None,
    causal_attention_mask: jax.Array | None = None,
    last_only: bool = False,
  ) -> NestedMap:
    """Runs a decoding step: reads new tokens, and predicts the next of each.

    Args:
      inputs: [B, L] or [B], int, the new tokens, or a single one.
      segment_pos: of the shape of the inputs, the position of each token within
        its example; None for `time_step`, `time_step + 1`, ... Of a single
        token and without a mask, it also hides what is before the example.
      atten_mask: of the new tokens by all positions, [B, N, L, max_length], or
        [B, 1, max_length] of a single token; see `AttentionMask.of`. Positions
        not decoded yet are hidden in any case. None is causal.
      time_step: [], the index of the first of them; None for the one after the
        last step.
      causal_attention_mask: [B, L], as for `__call__`.
      last_only: whether to predict only the token after the last one; L is 1
        in the result.

    Returns:
      `logits`, `log_probs` and `probs` of the token after each, [B, L, V] or
      [B, V].

    Raises:
      UserError: the model type is 'bidirectional'.
    """
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise errors.UserError(
        "TransformerLm.extend_step: the model_type 'bidirectional' does not"
        " decode token by token; expected 'causal' or 'prefix'"
      )
    self._check_prefix(causal_attention_mask)
    if time_step is None:
      time_step = self.get_decode_state('time_step')
    if inputs.ndim == 1:
      return self._extend_one(inputs, segment_pos, atten_mask, time_step)
    if segment_pos is None:
      segment_pos = (time_step + jnp.arange(inputs.shape[1]))[None]
    if causal_attention_mask is not None:
      visible = self._extend_prefix(causal_attention_mask, time_step)
      given = AttentionMask.of(atten_mask, where='TransformerLm.extend_step')
      atten_mask = AttentionMask(given.visible).restricted(visible)
    hidden = self.transformer.extend_step(
      self._embed_step(inputs, segment_pos),
      time_step=time_step,
      segment_pos=segment_pos,
      atten_mask=atten_mask,
    )
    self._store_time_step(time_step + inputs.shape[1])
    return self._predict(hidden[:, -1:] if last_only else hidden)

  def _extend_one(self, ids, segment_pos, mask, time_step) -> NestedMap:
    """Runs a decoding step of a single token; see `extend_step`."""
    positions = time_step[None] if segment_pos is None else segment_pos
    hidden = self.transformer.extend_step(
      self._embed_step(ids[:, None], positions[:, None])[:, 0],
      time_step=time_step,
      segment_pos=segment_pos,
      atten_mask=mask,
    )
    self._store_time_step(time_step + 1)
    return self._predict(hidden)

  def _predict(self, hidden: jax.Array) -> NestedMap:
    """Returns the predictions from the layers' output [..., D]."""
    hidden = self._normalize(hidden)
    predicted = sequence_losses.loss_or_predictions(self.softmax, hidden, None)
    if self.record_activations_in_xent_output:
      predicted.activations = hidden
    return predicted

  def _extend_prefix(
    self, causal_attention_mask: jax.Array, time_step: jax.Array
  ) -> jax.Array:
    """Returns the mask of a step in a prefix model, [B, 1, L, max_length]."""
    is_prefix = jax.lax.dynamic_update_slice_in_dim(
      self.get_decode_state('is_prefix'),
      causal_attention_mask == 0,
      time_step,
      axis=1,
    )
    self.update_decode_state('is_prefix', is_prefix)
    causal = step_mask(
      time_step, causal_attention_mask.shape[1], is_prefix.shape[1]
    )
    return causal | is_prefix[:, None, None, :]
