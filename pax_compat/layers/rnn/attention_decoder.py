"""A recurrent decoder with attention.

Shapes: B batch, S source time, T target time, D dims of the encoded source, O
output nodes of the layers, C dims of a context, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.config import Config, sub_config_field
from pax_compat.layers.attentions.attention_masks import Mask
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
from pax_compat.layers.rnn.rnn_lm import step_paddings
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.stochastics import Dropout
from pax_compat.nested_map import NestedMap


class RnnAttentionDecoder(base_layer.BaseLayer):
  """Predicts a target from an encoded source.

  The first layer attends to the source, and the further layers get its context
  beside the output of the layer before.

  Attributes:
    decoder_embedding_tpl: the embedding of target tokens.
    attention_rnn_tpl: the first layer.
    decoder_rnn_tpls: the further layers, such as `LstmFrnn`, of O + C inputs.
    decoder_residual_start: the first of all layers with a residual; the layer
      that attends, layer 0, has none.
    decoder_dropout_tpl: dropout of embedded tokens and of the further layers'
      outputs.
    softmax_tpl: the projection to the vocabulary and its loss.
    context_to_softmax: whether the softmax gets the context too, after the last
      layer's output.
  """

  decoder_embedding_tpl: Config = sub_config_field(Embedding)
  attention_rnn_tpl: Config = sub_config_field(LstmFrnnWithAttention)
  decoder_rnn_tpls: Sequence[Config] = ()
  decoder_residual_start: int = 2
  decoder_dropout_tpl: Config = sub_config_field(Dropout)
  softmax_tpl: Config = sub_config_field(FullSoftmax)
  context_to_softmax: bool = False

  def setup(self):
    self.create_child('decoder_embedding', self.decoder_embedding_tpl)
    self.create_child('decoder_dropout', self.decoder_dropout_tpl)
    for i, tpl in enumerate(self.decoder_rnn_tpls):
      self.create_child(f'decoder_rnn_{i}', tpl)
    self.create_child('attention_rnn', self.attention_rnn_tpl)
    self.create_child('softmax', self.softmax_tpl)

  def __call__(
    self,
    encoded: jax.Array,
    input_paddings: jax.Array,
    targets: jax.Array,
    target_paddings: jax.Array,
    labels: NestedMap | None = None,
    input_segment_ids: jax.Array | None = None,
    target_segment_ids: jax.Array | None = None,
  ) -> NestedMap:
    """Computes the cross-entropy loss of the target, or predictions.

    Args:
      encoded: [B, S, D], the encoded source.
      input_paddings: [B, S], 1 where a position is padding.
      targets: [B, T], int, the input tokens.
      target_paddings: [B, T], 1 where a position is padding.
      labels: see `TransformerLm.__call__`.
      input_segment_ids: [B, S], of packed examples; None if not packed.
      target_segment_ids: [B, T], likewise.

    Returns:
      As `TransformerLm.__call__`.
    """
    vectors = self.decoder_dropout(self.decoder_embedding.emb_lookup(targets))
    hidden, contexts = self.attention_rnn(
      vectors,
      target_paddings,
      encoded,
      input_paddings,
      target_segment_ids,
      input_segment_ids,
    )
    inputs = (target_paddings, target_segment_ids)
    for i in range(len(self.decoder_rnn_tpls)):
      hidden, _ = self._layer(i, hidden, contexts, inputs)
    return self._outputs(hidden, contexts, labels)

  def _layer(
    self,
    i: int,
    hidden: jax.Array,
    contexts: jax.Array,
    inputs: tuple[jax.Array, jax.Array | None],
    state: NestedMap | None = None,
  ) -> tuple[jax.Array, NestedMap]:
    """Returns the outputs of a further layer, and its last state.

    Args:
      i: index of the layer.
      hidden: [B, T, O], outputs of the layer before.
      contexts: [B, T, C].
      inputs: the paddings, and the segment ids or None.
      state: before the steps; None for the first state.
    """
    given = steps(jnp.concatenate([hidden, contexts], axis=-1), *inputs)
    outputs, state = getattr(self, f'decoder_rnn_{i}')(given, state)
    outputs = self.decoder_dropout(outputs)
    is_residual = i + 1 >= self.decoder_residual_start
    return hidden + outputs if is_residual else outputs, state

  def _outputs(
    self, hidden: jax.Array, contexts: jax.Array, labels: NestedMap | None
  ) -> NestedMap:
    """Returns the loss, or predictions, from the last layer's outputs."""
    if self.context_to_softmax:
      hidden = jnp.concatenate([hidden, contexts], axis=-1)
    return sequence_losses.loss_or_predictions(self.softmax, hidden, labels)

  def init_decoder_states(self, encoded: jax.Array, input_paddings: jax.Array):
    """Initialises the decode states of the target.

    Args:
      encoded: [B, S, D], the encoded source, which is not packed.
      input_paddings: [B, S], 1 where a position is padding.
    """
    source, state = self.attention_rnn.init_states(encoded, input_paddings)
    self._store('source', source, shared=True)
    self.update_decode_state('input_paddings', input_paddings, shared=True)
    # Beam search reads it, see `pruned_beam_search`.
    self.update_decode_state('source_coverage', state.pop('coverage'))
    self._store('attention_rnn_state', state)
    for i in range(len(self.decoder_rnn_tpls)):
      layer = getattr(self, f'decoder_rnn_{i}')
      state = layer.init_states(len(encoded))
      self._store(f'decoder_rnn_{i}_state', state)

  def extend_step(
    self,
    targets: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
  ) -> NestedMap:
    """Runs a decoding step; see `TransformerLm.extend_step`.

    Args:
      targets: [B, L], int, the new tokens.
      time_step: [], the index of the first of them.
      segment_pos: ignored: recurrent layers have no positions.
      atten_mask: [B, 1, 1, T], hides padding, such as that before a
        right-aligned prefix; None for no padding.

    Returns:
      `logits`, `log_probs` and `probs` [B, L, V].
    """
    del segment_pos
    paddings = step_paddings(targets, time_step, atten_mask)
    state = self._stored('attention_rnn_state')
    state.coverage = self.get_decode_state('source_coverage')
    hidden, contexts, state = self.attention_rnn.extend_step(
      self.decoder_dropout(self.decoder_embedding.emb_lookup(targets)),
      paddings,
      self._stored('source'),
      self.get_decode_state('input_paddings'),
      state,
    )
    self.update_decode_state('source_coverage', state.pop('coverage'))
    self._store('attention_rnn_state', state)
    for i in range(len(self.decoder_rnn_tpls)):
      name = f'decoder_rnn_{i}_state'
      hidden, state = self._layer(
        i, hidden, contexts, (paddings, None), self._stored(name)
      )
      self._store(name, state)
    return self._outputs(hidden, contexts, None)

  def _store(self, name: str, state: NestedMap, *, shared: bool = False):
    """Stores a decode state; Flax returns nested maps as plain dicts."""
    self.update_decode_state(name, state.ToNestedDict(), shared=shared)

  def _stored(self, name: str) -> NestedMap:
    return NestedMap.FromNestedDict(self.get_decode_state(name))


def steps(
  vectors: jax.Array, paddings: jax.Array, segment_ids: jax.Array | None = None
) -> NestedMap:
  """Returns the inputs of a recurrent layer.

  Args:
    vectors: [B, T, I].
    paddings: [B, T].
    segment_ids: [B, T], of packed examples, or None.
  """
  inputs = NestedMap(
    act=vectors, padding=paddings[..., None].astype(vectors.dtype)
  )
  if segment_ids is not None:
    inputs.example_ids = segment_ids[..., None]
  return inputs
