"""A language model made of recurrent layers.

Shapes: B batch, T time, L steps of decoding, D dims of an embedding, O output
nodes of the recurrent layers, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import transformer_losses
from pax_compat.layers.embeddings import Embedding
from pax_compat.layers.recurrent_stacks import StackFrnn
from pax_compat.layers.softmaxes import FullSoftmax
from pax_compat.layers.stochastics import Dropout
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


class RnnLm(base_layer.BaseLayer):
  """Recurrent layers that predict tokens: a network for `LanguageModel`.

  Attributes:
    vocab_size: V.
    embedding_dims: D; None leaves it to the templates.
    rnn_dims: O; None leaves it to the templates.
    packed_input: whether examples are packed, so that segment ids are needed;
      the cells must have `reset_cell_state`.
    embedding_tpl: the embedding of tokens; None if the inputs are vectors.
    embedding_dropout_tpl: what is done to the embedded tokens.
    rnns_tpl: the layers, a `StackFrnn`.
    softmax_tpl: the projection onto the vocabulary and its loss.
  """

  vocab_size: int = REQUIRED
  embedding_dims: int | None = None
  rnn_dims: int | None = None
  packed_input: bool = False
  embedding_tpl: Config | None = sub_config_field(Embedding)
  embedding_dropout_tpl: Config = sub_config_field(Dropout)
  rnns_tpl: Config = sub_config_field(StackFrnn)
  softmax_tpl: Config = sub_config_field(FullSoftmax)

  def setup(self):
    dims, classes = self.embedding_dims, self.vocab_size
    if self.embedding_tpl is not None:
      self._create(
        'embedding', 'embedding_tpl', input_dims=dims, num_classes=classes
      )
      self.create_child('embedding_dropout', self.embedding_dropout_tpl)
    self._create(
      'rnns',
      'rnns_tpl',
      num_input_nodes=dims,
      num_output_nodes=self.rnn_dims,
    )
    self._create(
      'softmax', 'softmax_tpl', input_dims=self.rnn_dims, num_classes=classes
    )

  def _create(self, name: str, field: str, **fields):
    tpl = getattr(self, field)
    self.create_child(name, tpl, **agreed(f'RnnLm.{field}', tpl, **fields))

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    labels: NestedMap | None = None,
    segment_ids: jax.Array | None = None,
    segment_pos: jax.Array | None = None,
  ) -> NestedMap:
    """Computes the loss of predicting tokens, or their probabilities.

    Args:
      inputs: [B, T], int, the tokens that the model sees; or vectors [B, T, D]
        if there is no embedding.
      paddings: [B, T], 1 where a position is padding.
      labels: what to predict: `class_weights` [B, T], and `class_ids` [B, T]
        int or `class_probabilities` [B, T, V]; None for no loss.
      segment_ids: [B, T], the packed example that each token belongs to.
      segment_pos: has no meaning here: layers count no positions.

    Returns:
      With labels what the softmax returns, and `per_token_xent` [B, T],
      `per_sequence_xent` [B] and `total_loss` []; without them `logits`,
      `log_probs` and `probs` [B, T, V]. Both with `last_hidden` [B, T, O], what
      the softmax gets.

    Raises:
      UserError: segment ids are missing, or there are some and the examples
        are not packed.
    """
    del segment_pos
    if (segment_ids is not None) != self.packed_input:
      raise errors.UserError(
        f'RnnLm.packed_input is {self.packed_input}; expected segment_ids if it'
        ' is True, and none if it is False'
      )
    steps = self._steps(self._embed(inputs), paddings)
    if segment_ids is not None:
      steps.segment_ids = segment_ids[..., None]
    hidden, _ = self.rnns(steps)
    if labels is None:
      output = transformer_losses.predictions(self.softmax.get_logits(hidden))
    else:
      output = transformer_losses.xent(self.softmax, hidden, labels)
    output.last_hidden = hidden
    return output

  def _embed(self, inputs: jax.Array) -> jax.Array:
    """Returns what the layers get, [B, T, D]."""
    if self.embedding_tpl is None:
      return inputs
    return self.embedding_dropout(self.embedding.emb_lookup(inputs))

  def _steps(self, vectors: jax.Array, paddings: jax.Array) -> NestedMap:
    return NestedMap(
      act=vectors, padding=paddings[..., None].astype(vectors.dtype)
    )

  def init_states(self, batch_size: int, max_length: int):
    """Starts decoding, before the first `extend_step`.

    Args:
      batch_size: B.
      max_length: has no meaning here: any number of positions is decoded.
    """
    del max_length
    self.update_decode_state('rnns', self.rnns.init_states(batch_size))

  def extend_step(
    self,
    inputs: jax.Array,
    *,
    time_step: jax.Array,
    segment_pos: jax.Array | None = None,
    mask: jax.Array | None = None,
  ) -> jax.Array:
    """Predicts from new tokens and all before them.

    Args:
      inputs: [B, L], int, the tokens; or vectors [B, L, D].
      time_step: [], the index of the first of them.
      segment_pos: has no meaning here.
      mask: boolean, [B, 1, 1, T], False for tokens that are passed over, such
        as what stands in front of a sequence; None passes over none.

    Returns:
      Logits [B, L, V] of the tokens after each.
    """
    del segment_pos
    paddings = jnp.zeros(inputs.shape[:2])
    if mask is not None:
      size = inputs.shape[1]
      seen = jax.lax.dynamic_slice_in_dim(mask[:, 0, 0], time_step, size, 1)
      paddings = jnp.broadcast_to(1.0 - seen, paddings.shape)
    hidden, state = self.rnns(
      self._steps(self._embed(inputs), paddings), self.get_decode_state('rnns')
    )
    self.update_decode_state('rnns', state)
    return self.softmax.get_logits(hidden)
