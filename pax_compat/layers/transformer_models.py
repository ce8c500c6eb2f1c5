"""Networks made of Transformer layers.

Shapes: B batch, T time, D model dims, V vocabulary.
"""

import jax

from pax_compat import base_layer
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import embedding_softmax, stochastics, transformers
from pax_compat.nested_map import NestedMap


class TransformerLm(base_layer.BaseLayer):
  """A decoder-only Transformer language model.

  Attributes:
    vocab_size: V.
    model_dims: D.
    input_dropout_prob: dropout of the embedded input.
    embedding_tpl: the embedding of tokens.
    position_emb_tpl: the embedding of positions.
    stacked_transformer_tpl: the layers.
    softmax_tpl: the projection onto the vocabulary and its loss.
  """

  vocab_size: int = REQUIRED
  model_dims: int = REQUIRED
  input_dropout_prob: float = 0.0
  embedding_tpl: Config = sub_config_field(embedding_softmax.Embedding)
  position_emb_tpl: Config = sub_config_field(
    embedding_softmax.PositionalEmbedding
  )
  stacked_transformer_tpl: Config = sub_config_field(
    transformers.StackedTransformer
  )
  softmax_tpl: Config = sub_config_field(embedding_softmax.FullSoftmax)

  def setup(self):
    self.create_child(
      'embedding',
      self.embedding_tpl.clone().set(
        num_classes=self.vocab_size, input_dims=self.model_dims
      ),
    )
    self.create_child(
      'position_emb',
      self.position_emb_tpl.clone().set(embedding_dims=self.model_dims),
    )
    self.create_child(
      'input_dropout',
      stochastics.Dropout.config(keep_prob=1.0 - self.input_dropout_prob),
    )
    self.create_child(
      'transformer',
      self.stacked_transformer_tpl.clone().set(model_dims=self.model_dims),
    )
    self.create_child(
      'softmax',
      self.softmax_tpl.clone().set(
        input_dims=self.model_dims, num_classes=self.vocab_size
      ),
    )

  def __call__(
    self, ids: jax.Array, paddings: jax.Array, labels: NestedMap
  ) -> NestedMap:
    """Computes the loss of predicting each next token.

    Args:
      ids: [B, T], int, the tokens that the model sees.
      paddings: [B, T], 1 where a position is padding.
      labels: `class_ids` [B, T], int, the tokens to predict, and
        `class_weights` [B, T].

    Returns:
      What `FullSoftmax` returns.
    """
    inputs = self.embedding(ids) + self.position_emb(ids.shape[1])
    hidden = self.transformer(self.input_dropout(inputs), paddings)
    return self.softmax(
      hidden, class_weights=labels.class_weights, class_ids=labels.class_ids
    )
