"""A recurrent encoder-decoder with attention.

Shapes: B batch, S source time, T target time, D dims of the encoder's output.
"""

from collections.abc import Sequence

import jax

from pax_compat import errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.attention_decoder import RnnAttentionDecoder, steps
from pax_compat.layers.stochastics import Dropout
from pax_compat.nested_map import NestedMap


class RnnEncoderDecoder(RnnAttentionDecoder):
  """An encoder of a source sequence, and a decoder that predicts a target.

  As in RNMT+, https://arxiv.org/abs/1804.09849: bidirectional layers encode the
  source; for the decoder see `RnnAttentionDecoder`.

  Attributes:
    packed_input: whether examples are packed, so that segment ids are required.
    encoder_embedding_tpl: the embedding of source tokens.
    encoder_rnn_tpls: the encoder's layers, such as `BidirectionalFrnn`.
    encoder_residual_start: the first layer whose input is added to its output.
    encoder_dropout_tpl: dropout of embedded tokens and of layers' outputs.
    encoder_proj_tpl: a projection of the encoder's output to D, which is 0 at
      padding; None for none.
  """

  packed_input: bool = False
  encoder_embedding_tpl: Config = sub_config_field(Embedding)
  encoder_rnn_tpls: Sequence[Config] = REQUIRED
  encoder_residual_start: int = 2
  encoder_dropout_tpl: Config = sub_config_field(Dropout)
  encoder_proj_tpl: Config | None = None

  def setup(self):
    super().setup()
    self.create_child('encoder_embedding', self.encoder_embedding_tpl)
    self.create_child('encoder_dropout', self.encoder_dropout_tpl)
    for i, tpl in enumerate(self.encoder_rnn_tpls):
      self.create_child(f'encoder_rnn_{i}', tpl)
    if self.encoder_proj_tpl is not None:
      self.create_child('encoder_proj', self.encoder_proj_tpl)

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
    return super().__call__(
      encoded,
      input_paddings,
      targets,
      target_paddings,
      labels,
      input_segment_ids,
      target_segment_ids,
    )

  def encode(
    self,
    inputs: jax.Array,
    input_paddings: jax.Array,
    input_segment_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the encoder's output [B, S, D]; for arguments see `__call__`."""
    hidden = self.encoder_dropout(self.encoder_embedding.emb_lookup(inputs))
    for i in range(len(self.encoder_rnn_tpls)):
      source = steps(hidden, input_paddings, input_segment_ids)
      outputs, _ = getattr(self, f'encoder_rnn_{i}')(source)
      outputs = self.encoder_dropout(outputs)
      is_residual = i >= self.encoder_residual_start
      hidden = hidden + outputs if is_residual else outputs
    return (
      hidden if self.encoder_proj_tpl is None else self.encoder_proj(hidden)
    )

  def init_states(
    self, inputs: jax.Array, input_paddings: jax.Array, *, max_length: int
  ):
    """Encodes the source, and initialises the decode states of the target.

    Args:
      inputs: [B, S], int, the source tokens, which are not packed.
      input_paddings: [B, S], 1 where a position is padding.
      max_length: ignored: the number of positions is unlimited.
    """
    del max_length
    encoded = self.encode(inputs, input_paddings)
    self.init_decoder_states(encoded, input_paddings)
