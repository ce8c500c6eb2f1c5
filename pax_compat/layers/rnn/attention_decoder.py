"""A recurrent decoder with attention.

Shapes: B batch, S source time, T target time, D dims of the encoded source, O
output nodes of the layers, C dims of a context, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.config import Config, sub_config_field
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
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
    for i in range(len(self.decoder_rnn_tpls)):
      inputs = steps(
        jnp.concatenate([hidden, contexts], axis=-1),
        target_paddings,
        target_segment_ids,
      )
      outputs, _ = getattr(self, f'decoder_rnn_{i}')(inputs)
      outputs = self.decoder_dropout(outputs)
      is_residual = i + 1 >= self.decoder_residual_start
      hidden = hidden + outputs if is_residual else outputs
    if self.context_to_softmax:
      hidden = jnp.concatenate([hidden, contexts], axis=-1)
    return sequence_losses.loss_or_predictions(self.softmax, hidden, labels)


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
    inputs.segment_ids = segment_ids[..., None]
  return inputs
