"""A recurrent encoder-decoder with attention.

Shapes: B batch, S source time, T target time, D dims of the encoder's output, O
output nodes of the decoder's layers, C dims of a context, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.attention_rnn import LstmFrnnWithAttention
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.stochastics import Dropout
from pax_compat.nested_map import NestedMap


class RnnEncoderDecoder(base_layer.BaseLayer):
  """An encoder of a source sequence, and a decoder that predicts a target.

  As in RNMT+, https://arxiv.org/abs/1804.09849: bidirectional layers encode the
  source; the decoder's first layer attends to it, and the further layers get
  its context beside the output of the layer before.

  Attributes:
    packed_input: whether examples are packed, so that segment ids are required.
    encoder_embedding_tpl: the embedding of source tokens.
    encoder_rnn_tpls: the encoder's layers, such as `BidirectionalFrnn`.
    encoder_residual_start: the first layer whose input is added to its output.
    encoder_dropout_tpl: dropout of embedded tokens and of layers' outputs.
    encoder_proj_tpl: a projection of the encoder's output to D, which is 0 at
      padding; None for none.
    decoder_embedding_tpl: the embedding of target tokens.
    attention_rnn_tpl: the decoder's first layer.
    decoder_rnn_tpls: its further layers, such as `LstmFrnn`, of O + C inputs.
    decoder_residual_start: the first of all its layers with a residual.
    decoder_dropout_tpl: dropout of embedded tokens and of the further layers'
      outputs.
    softmax_tpl: the projection to the vocabulary and its loss.
    context_to_softmax: whether the softmax gets the context too, after the last
      layer's output.
  """

  packed_input: bool = False
  encoder_embedding_tpl: Config = sub_config_field(Embedding)
  encoder_rnn_tpls: Sequence[Config] = REQUIRED
  encoder_residual_start: int = 2
  encoder_dropout_tpl: Config = sub_config_field(Dropout)
  encoder_proj_tpl: Config | None = None
  decoder_embedding_tpl: Config = sub_config_field(Embedding)
  attention_rnn_tpl: Config = sub_config_field(LstmFrnnWithAttention)
  decoder_rnn_tpls: Sequence[Config] = ()
  decoder_residual_start: int = 2
  decoder_dropout_tpl: Config = sub_config_field(Dropout)
  softmax_tpl: Config = sub_config_field(FullSoftmax)
  context_to_softmax: bool = False

  def setup(self):
    for side in ('encoder', 'decoder'):
      self.create_child(
        f'{side}_embedding', getattr(self, f'{side}_embedding_tpl')
      )
      self.create_child(f'{side}_dropout', getattr(self, f'{side}_dropout_tpl'))
      for i, tpl in enumerate(getattr(self, f'{side}_rnn_tpls')):
        self.create_child(f'{side}_rnn_{i}', tpl)
    if self.encoder_proj_tpl is not None:
      self.create_child('encoder_proj', self.encoder_proj_tpl)
    self.create_child('attention_rnn', self.attention_rnn_tpl)
    self.create_child('softmax', self.softmax_tpl)

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
    """Computes the cross-entropy loss of the target, or predictions.

    Args:
      inputs: [B, S], int, the source tokens.
      input_paddings: [B, S], 1 where a position is padding.
      targets: [B, T], int, the input tokens of the decoder.
      target_paddings: [B, T], 1 where a position is padding.
      labels: see `TransformerLm.__call__`.
      input_segment_ids: [B, S], the packed example of each token.
      input_segment_pos: ignored: recurrent layers have no positions.
      target_segment_ids: [B, T], as of the source.
      target_segment_pos: ignored.

    Returns:
      As `TransformerLm.__call__`.

    Raises:
      UserError: segment ids are missing.
    """
    del input_segment_pos, target_segment_pos
    if self.packed_input and (
      input_segment_ids is None or target_segment_ids is None
    ):
      raise errors.UserError(
        'RnnEncoderDecoder.packed_input is True, but there are no segment ids'
      )
    encoded = self.encode(inputs, input_paddings, input_segment_ids)
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
      steps = _steps(
        jnp.concatenate([hidden, contexts], axis=-1),
        target_paddings,
        target_segment_ids,
      )
      outputs, _ = getattr(self, f'decoder_rnn_{i}')(steps)
      outputs = self.decoder_dropout(outputs)
      is_residual = i + 1 >= self.decoder_residual_start
      hidden = hidden + outputs if is_residual else outputs
    if self.context_to_softmax:
      hidden = jnp.concatenate([hidden, contexts], axis=-1)
    return sequence_losses.loss_or_predictions(self.softmax, hidden, labels)

  def encode(
    self,
    inputs: jax.Array,
    input_paddings: jax.Array,
    input_segment_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the encoder's output [B, S, D]; for arguments see `__call__`."""
    hidden = self.encoder_dropout(self.encoder_embedding.emb_lookup(inputs))
    for i in range(len(self.encoder_rnn_tpls)):
      steps = _steps(hidden, input_paddings, input_segment_ids)
      outputs, _ = getattr(self, f'encoder_rnn_{i}')(steps)
      outputs = self.encoder_dropout(outputs)
      is_residual = i >= self.encoder_residual_start
      hidden = hidden + outputs if is_residual else outputs
    return (
      hidden if self.encoder_proj_tpl is None else self.encoder_proj(hidden)
    )


def _steps(
  vectors: jax.Array, paddings: jax.Array, segment_ids: jax.Array | None
) -> NestedMap:
  steps = NestedMap(
    act=vectors, padding=paddings[..., None].astype(vectors.dtype)
  )
  if segment_ids is not None:
    steps.segment_ids = segment_ids[..., None]
  return steps
