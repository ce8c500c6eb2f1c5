"""A language model made of Transformer layers.

Shapes: B batch, T time, L steps of decoding, D model dims, V vocabulary.
"""

import enum

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import embedding_softmax, stochastics
from pax_compat.layers.attentions.attention_masks import (
  causal_mask,
  combine_masks,
  step_mask,
)
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformer_models import (
  transformer_sharding as sharding,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from pax_compat.nested_map import NestedMap


class LanguageModelType(enum.StrEnum):
  """Which tokens a token sees.

  Attributes:
    CAUSAL: those before it.
    PREFIX: those before it and all of the prefix.
    BIDIRECTIONAL: all.
  """

  CAUSAL = 'causal'
  PREFIX = 'prefix'
  BIDIRECTIONAL = 'bidirectional'


def positions_in_segments(segment_ids: jax.Array) -> jax.Array:
  """Returns the position [B, T] of each token within its packed example.

  Args:
    segment_ids: [B, T], the example that each token belongs to; those of one
      example stand side by side.
  """
  index = jnp.arange(segment_ids.shape[1])
  first = segment_ids[:, 1:] != segment_ids[:, :-1]
  first = jnp.pad(first, ((0, 0), (1, 0)), constant_values=True)
  return index - jax.lax.cummax(jnp.where(first, index, 0), axis=1)


class TransformerLm(base_layer.BaseLayer):
  """A Transformer that predicts tokens.

  Attributes:
    vocab_size: V.
    model_dims: D.
    model_type: which tokens a token sees; a `LanguageModelType` or its name.
    packed_input: whether examples are packed, so that segment ids are needed.
    order_by_position: whether, in a causal model, the tokens before a token are
      those of no later position, wherever they stand; given positions may be
      in any order, and the same for several tokens, which then see each other.
      Decoding goes by the order of the steps all the same.
    position_emb_tpl: the embedding of positions; None for none.
    separate_embedding_tpl: the embedding of tokens; None takes that of a
      softmax which shares its weights with one.
    input_dropout_prob: of dropping an element of what the layers get.
    stacked_transformer_tpl: the layers: a `StackedTransformer` or
      `StackedTransformerRepeated`.
    final_ln_tpl: a normalisation of what the layers return, or None.
    output_dropout_prob: of dropping an element of what the softmax gets.
    softmax_tpl: the projection onto the vocabulary and its loss.
    entropy_loss_weight: if set, this times the mean of the predictions'
      negative entropy is added to `total_loss`.
    skip_compute_loss: whether the result is what the layers return, [B, T, D],
      and nothing of the loss.
    record_activations_in_xent_output: whether the result has `activations`,
      what the softmax gets.
    record_logits_in_xent_output: whether the result has `logits`, also where
      the loss is computed without them.
  """

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

  @classmethod
  def set_sharding_params_v1(cls, lm_p: Config, **axes) -> Config:
    """Says how a model is split over a mesh of replicas, data and model.

    Args:
      lm_p: config of a `TransformerLm`.
      **axes: see `transformer_sharding.canonical_shardings`.

    Returns:
      `lm_p`, changed.
    """
    return sharding.split_lm(lm_p, **sharding.canonical_shardings(**axes))

  @classmethod
  def set_custom_sharding_params(cls, lm_p: Config, **shardings) -> Config:
    """Says how a model is split, tensor by tensor.

    Args:
      lm_p: config of a `TransformerLm`.
      **shardings: see `transformer_sharding.split_lm`.

    Returns:
      `lm_p`, changed.
    """
    return sharding.split_lm(lm_p, **shardings)

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    kinds = [kind.value for kind in LanguageModelType]
    if self.model_type not in kinds:
      raise errors.UserError(
        f'TransformerLm.model_type is {self.model_type!r}'
        + errors.did_you_mean(str(self.model_type), kinds)
      )
    if self.order_by_position and self.model_type != LanguageModelType.CAUSAL:
      raise errors.UserError(
        'TransformerLm.order_by_position is for the model_type'
        f' {LanguageModelType.CAUSAL.value!r}; this one is'
        f' {str(self.model_type)!r}'
      )
    dims, classes = self.model_dims, self.vocab_size
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
    )
    self._create('final_ln', 'final_ln_tpl', dim=dims)
    for name, prob in (
      ('input_dropout', self.input_dropout_prob),
      ('output_dropout', self.output_dropout_prob),
    ):
      tpl = stochastics.Dropout.config(keep_prob=1.0 - prob)
      self.create_child(name, tpl)
    self._create('softmax', 'softmax_tpl', input_dims=dims, num_classes=classes)

  def _create(self, name: str, field: str, **fields):
    """Creates the child of the template in `field`, if there is one."""
    tpl = getattr(self, field)
    if tpl is not None:
      self.create_child(
        name, tpl, **agreed(f'TransformerLm.{field}', tpl, **fields)
      )

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    labels: NestedMap | None = None,
    segment_ids: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
    causal_attention_mask: jax.Array | None = None,
    *,
    mask: jax.Array | None = None,
  ) -> NestedMap | jax.Array:
    """Computes the loss of predicting tokens, or their probabilities.

    Args:
      inputs: [B, T], int, the tokens that the model sees.
      paddings: [B, T], 1 where a position is padding.
      labels: what to predict: `class_weights` [B, T], and `class_ids` [B, T]
        int or `class_probabilities` [B, T, V]; None for no loss.
      segment_ids: [B, T], the packed example that each token belongs to.
      segment_pos: [B, T], the position of each token within its example; None
        counts from its beginning.
      causal_attention_mask: [B, T], 0 where a token belongs to the prefix of
        its example, which all of it sees, and 1 elsewhere; for the model type
        'prefix' only.
      mask: boolean, broadcasts to [B, N, T, T], False where a token is not to
        see another one, either; None hides no more.

    Returns:
      With labels what the softmax returns, and `per_token_xent` [B, T],
      `per_sequence_xent` [B] and `total_loss` []; without them `logits`,
      `log_probs` and `probs` [B, T, V]. What the layers return, [B, T, D], if
      `skip_compute_loss`.

    Raises:
      UserError: segment ids are missing, or there is a prefix and the model
        knows none.
    """
    if segment_ids is not None and segment_pos is None:
      segment_pos = positions_in_segments(segment_ids)
    hidden = self.transformer(
      self.input_dropout(self._embed(inputs, segment_pos)),
      paddings,
      segment_ids=segment_ids,
      segment_pos=segment_pos,
      mask=combine_masks(
        self._prefix_mask(causal_attention_mask, inputs.shape[1]),
        self._position_mask(segment_pos),
        mask,
      ),
    )
    hidden = self.output_dropout(self._normalize(hidden))
    if self.skip_compute_loss:
      return hidden
    return self.compute_loss(hidden, labels)

  def _embed(self, ids: jax.Array, positions: jax.Array | None) -> jax.Array:
    """Returns what the layers get, [B, T, D]."""
    if self.separate_embedding_tpl is not None:
      vectors = self.embedding_lookup.emb_lookup(ids)
    elif hasattr(type(self.softmax), 'emb_lookup'):
      vectors = self.softmax.emb_lookup(ids)
    else:
      raise errors.UserError(
        f'TransformerLm.softmax_tpl: a {type(self.softmax).__name__} has no'
        ' embedding; expected separate_embedding_tpl to be set, or a'
        ' SharedEmbeddingSoftmax'
      )
    if self.position_emb_tpl is not None:
      vectors = vectors + self.position_emb(
        seq_length=ids.shape[1] if positions is None else None,
        position=positions,
      )
    return vectors

  def _normalize(self, hidden: jax.Array) -> jax.Array:
    return hidden if self.final_ln_tpl is None else self.final_ln(hidden)

  def _prefix_mask(
    self, causal_attention_mask: jax.Array | None, length: int
  ) -> jax.Array | None:
    """Returns which tokens see which in a prefix model, [B, 1, T, T]."""
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
        'TransformerLm: causal_attention_mask is for the model_type'
        f' {prefix.value!r}; this one is {str(self.model_type)!r}'
      )

  def _position_mask(self, positions: jax.Array | None) -> jax.Array | None:
    """Returns which tokens see which by their positions, [B, 1, T, T]."""
    if not self.order_by_position:
      return None
    if positions is None:
      raise errors.UserError(
        'TransformerLm.order_by_position is on, but there are no segment_pos'
      )
    return (positions[:, :, None] >= positions[:, None, :])[:, None]

  def compute_loss(
    self, activations: jax.Array, labels: NestedMap | None = None
  ) -> NestedMap:
    """Computes the loss, or probabilities; see `__call__`.

    Args:
      activations: [B, T, D], what the softmax gets.
      labels: what to predict; None for no loss.
    """
    if labels is None:
      output = sequence_losses.predictions(self.softmax.get_logits(activations))
    else:
      output = sequence_losses.xent(self.softmax, activations, labels)
      if self.entropy_loss_weight is not None:
        entropy = sequence_losses.negative_entropy(output, labels.class_weights)
        output.avg_entropy_loss = entropy
        output.total_loss += entropy * self.entropy_loss_weight
        self.add_summary('avg_entropy_loss', entropy)
    if self.record_activations_in_xent_output:
      output.activations = activations
    if self.record_logits_in_xent_output and 'logits' not in output:
      output.logits = self.softmax.get_logits(activations)
    return output

  def init_states(self, batch_size: int, max_length: int):
    """Makes room to decode, before the first `extend_step`.

    Args:
      batch_size: B.
      max_length: up to how many positions are decoded, prefixes included.
    """
    self.transformer.init_states(batch_size, max_length)
    if self.model_type == LanguageModelType.PREFIX:
      self.update_decode_state(
        'is_prefix', jnp.zeros([batch_size, max_length], bool)
      )

  def extend_step(
    self,
    inputs: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    causal_attention_mask: jax.Array | None = None,
    mask: jax.Array | None = None,
  ) -> jax.Array:
    """Predicts from new tokens and all before them.

    Args:
      inputs: [B, L], int, the tokens.
      time_step: [], the index of the first of them.
      segment_pos: [B, L], the position of each token within its example; None
        for `time_step`, `time_step + 1`, ...
      causal_attention_mask: [B, L], as for `__call__`.
      mask: boolean, broadcasts to [B, N, L, max_length], False where a token is
        not to see another one; None hides none but later ones.

    Returns:
      Logits [B, L, V] of the tokens after each.

    Raises:
      UserError: the model type is 'bidirectional'.
    """
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise errors.UserError(
        "TransformerLm.extend_step: the model_type 'bidirectional' does not"
        " decode token by token; expected 'causal' or 'prefix'"
      )
    self._check_prefix(causal_attention_mask)
    steps = inputs.shape[1]
    if segment_pos is None:
      segment_pos = (time_step + jnp.arange(steps))[None]
    with_prefix = causal_attention_mask is not None
    if with_prefix:
      seen = self._extend_prefix(causal_attention_mask, time_step)
      mask = combine_masks(seen, mask)
    hidden = self.transformer.extend_step(
      self._embed(inputs, segment_pos),
      time_step=time_step,
      segment_pos=segment_pos,
      mask=mask,
      causal=not with_prefix,
    )
    return self.softmax.get_logits(self._normalize(hidden))

  def _extend_prefix(
    self, causal_attention_mask: jax.Array, time_step: jax.Array
  ) -> jax.Array:
    """Returns which new tokens see which of all, [B, 1, L, max_length]."""
    known = jax.lax.dynamic_update_slice_in_dim(
      self.get_decode_state('is_prefix'),
      causal_attention_mask == 0,
      time_step,
      axis=1,
    )
    self.update_decode_state('is_prefix', known)
    earlier = step_mask(
      time_step, causal_attention_mask.shape[1], known.shape[1]
    )
    return earlier | known[:, None, None, :]
