"""A language model made of recurrent layers.

Shapes: B batch, T time, L steps of decoding, D dims of an embedding, C dims of
a condition, O output nodes of the recurrent layers, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.recurrent_stacks import StackFrnn
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.stochastics import Dropout
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


class RnnLm(base_layer.BaseLayer):
  """Recurrent layers that predict tokens: a network for `LanguageModel`.

  Attributes:
    vocab_size: V.
    embedding_dims: D; None leaves it to the templates.
    rnn_dims: O; None leaves it to the templates.
    condition_dims: C, of a vector for each example that the layers see beside
      each of its tokens; 0 for no such vector.
    packed_input: whether examples are packed, so that segment ids are needed;
      the cells must have `reset_cell_state`.
    embedding_tpl: the embedding of tokens; None if the inputs are vectors.
    embedding_dropout_tpl: what is done to the embedded tokens, and to the
      condition beside each.
    rnns_tpl: the layers, a `StackFrnn`.
    softmax_tpl: the projection onto the vocabulary and its loss.
  """

  vocab_size: int = REQUIRED
  embedding_dims: int | None = None
  rnn_dims: int | None = None
  condition_dims: int = 0
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
      num_input_nodes=dims and dims + self.condition_dims,
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
    *,
    condition: jax.Array | None = None,
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
      condition: [B, C], what the layers see beside each token.

    Returns:
      With labels what the softmax returns, and `per_token_xent` [B, T],
      `per_sequence_xent` [B] and `total_loss` []; without them `logits`,
      `log_probs` and `probs` [B, T, V]. Both with `last_hidden` [B, T, O], what
      the softmax gets.

    Raises:
      UserError: segment ids are missing, or there are some and the examples
        are not packed; or the condition is not as wide as it is to be.
    """
    del segment_pos
    if (segment_ids is not None) != self.packed_input:
      raise errors.UserError(
        f'RnnLm.packed_input is {self.packed_input}; expected segment_ids if it'
        ' is True, and none if it is False'
      )
    steps = self._steps(self._embed(inputs, condition), paddings)
    if segment_ids is not None:
      steps.segment_ids = segment_ids[..., None]
    hidden, _ = self.rnns(steps)
    if labels is None:
      output = sequence_losses.predictions(self.softmax.get_logits(hidden))
    else:
      output = sequence_losses.xent(self.softmax, hidden, labels)
    output.last_hidden = hidden
    return output

  def _embed(self, inputs: jax.Array, condition: jax.Array | None) -> jax.Array:
    """Returns what the layers get, [B, T, D + C]."""
    if self.embedding_tpl is None:
      return self._beside(inputs, condition)
    vectors = self._beside(self.embedding.emb_lookup(inputs), condition)
    return self.embedding_dropout(vectors)

  def _beside(
    self, vectors: jax.Array, condition: jax.Array | None
  ) -> jax.Array:
    """Returns vectors [B, T, D] with a condition [B, C] beside each."""
    shape = None if condition is None else condition.shape
    wanted = (vectors.shape[0], self.condition_dims)
    if shape != (wanted if self.condition_dims else None):
      raise errors.UserError(
        f'RnnLm.condition_dims is {self.condition_dims}; expected a condition'
        f' of the shape {list(wanted)} if it is not 0, and none if it is; got'
        f' {shape and list(shape)}'
      )
    if condition is None:
      return vectors
    each = jnp.broadcast_to(
      condition[:, None], (*vectors.shape[:2], self.condition_dims)
    )
    return jnp.concatenate([vectors, each.astype(vectors.dtype)], axis=-1)

  def _steps(self, vectors: jax.Array, paddings: jax.Array) -> NestedMap:
    return NestedMap(
      act=vectors, padding=paddings[..., None].astype(vectors.dtype)
    )

  def init_states(
    self,
    batch_size: int,
    max_length: int,
    *,
    condition: jax.Array | None = None,
  ):
    """Starts decoding, before the first `extend_step`.

    Args:
      batch_size: B.
      max_length: has no meaning here: any number of positions is decoded.
      condition: [B, C], what the layers see beside each token.
    """
    del max_length
    if condition is not None:
      self.update_decode_state('condition', condition)
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
    paddings = step_paddings(inputs, time_step, mask)
    condition = None
    if self.condition_dims:
      condition = self.get_decode_state('condition')
    steps = self._steps(self._embed(inputs, condition), paddings)
    hidden, state = self.rnns(steps, self.get_decode_state('rnns'))
    self.update_decode_state('rnns', state)
    return self.softmax.get_logits(hidden)


def step_paddings(
  inputs: jax.Array, time_step: jax.Array, mask: jax.Array | None
) -> jax.Array:
  """Returns paddings [B, L] of a decoding step; see `RnnLm.extend_step`.

  Args:
    inputs: [B, L, ...], of the step.
    time_step: [], the index of the first of them.
    mask: boolean, [B, 1, 1, T], False for what is passed over; None for
      nothing.
  """
  paddings = jnp.zeros(inputs.shape[:2])
  if mask is None:
    return paddings
  size = inputs.shape[1]
  seen = jax.lax.dynamic_slice_in_dim(mask[:, 0, 0], time_step, size, 1)
  return jnp.broadcast_to(1.0 - seen, paddings.shape)
