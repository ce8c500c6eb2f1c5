"""A Transformer encoder-decoder whose inputs may be mixtures of sentences.

Shapes: B batch, S source time, T target time, D model dims.
"""

import jax

from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)


class CrossoverEncoderDecoder(TransformerEncoderDecoder):
  """A Transformer encoder-decoder that also takes embedded tokens.

  As in XEnDec, https://arxiv.org/abs/2106.04060. The cross-attentions of the
  decoder's layers return their weights (`return_atten_probs`). Examples are not
  packed.
  """

  def embed_tokens(self, side: str, ids: jax.Array) -> jax.Array:
    """Returns embedded tokens [B, T, D], without positions.

    Args:
      side: 'encoder' or 'decoder'.
      ids: [B, T].
    """
    return self._embedding(side).emb_lookup(ids)

  def decode_vectors(
    self,
    source: jax.Array,
    source_paddings: jax.Array,
    target: jax.Array,
    target_paddings: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Computes encoder and decoder of embedded tokens.

    Args:
      source: [B, S, D], embedded tokens without positions.
      source_paddings: [B, S], 1 where a position is padding.
      target: [B, T, D], likewise.
      target_paddings: [B, T].

    Returns:
      The softmax's input [B, T, D], and the weights of the cross-attention
      [B, T, S], the mean over layers and heads.
    """
    encoded = self._normalize(
      'encoder',
      self.encoder(
        self._with_positions('encoder', source, None), source_paddings
      ),
    )
    probs = []
    hidden = self.decoder(
      self._with_positions('decoder', target, None),
      target_paddings,
      cross_inputs=encoded,
      cross_paddings=source_paddings,
      atten_probs=probs,
    )
    mean = sum(one.cross_atten.mean(axis=1) for one in probs) / len(probs)
    return self._normalize('decoder', hidden), mean
