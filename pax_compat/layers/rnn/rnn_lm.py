"""A recurrent language model.

Shapes: B batch, T time, L new tokens of a decoding step, D dims of an
embedding, C dims of a condition, O output nodes of the recurrent layers, V
vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.attentions.attention_masks import AttentionMask, Mask
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.recurrent_stacks import StackFrnn
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.stochastics import Dropout
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


class RnnLm(base_layer.BaseLayer):
  """A stack of recurrent layers that predicts tokens, for `LanguageModel`.

  Attributes:
    vocab_size: V.
    embedding_dims: D; None keeps those of the templates.
    rnn_dims: O; None keeps those of the templates.
    condition_dims: C, of a vector per example that is concatenated to the
      embedding of each of its tokens; 0 for no condition.
    packed_input: whether examples are packed: then segment ids are required,
      and the cells need `reset_cell_state`.
    embedding_tpl: the token embedding; None if the inputs are vectors.
    embedding_dropout_tpl: dropout of the embedded tokens with the condition.
    rnns_tpl: the layers, a `StackFrnn`.
    softmax_tpl: the projection to the vocabulary and its loss.
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
    """Computes the cross-entropy loss, or predictions.

    Args:
      inputs: [B, T], int, the input tokens; or vectors [B, T, D] without an
        embedding.
      paddings: [B, T], 1 where a position is padding.
      labels: see `TransformerLm.__call__`.
      segment_ids: [B, T], the packed example of each token.
      segment_pos: ignored: recurrent layers have no positions.
      condition: [B, C].

    Returns:
      As `TransformerLm.__call__`, and `last_hidden` [B, T, O], the softmax's
      input.

    Raises:
      UserError: segment ids are missing, or given but the examples are not
        packed; or the condition has another shape.
    """
    del segment_pos
    if (segment_ids is not None) != self.packed_input:
      raise errors.UserError(
        f'RnnLm.packed_input is {self.packed_input}; expected segment_ids if it'
        ' is True, and none if it is False'
      )
    steps = self._steps(self._embed(inputs, condition), paddings)
    if segment_ids is not None:
      steps.example_ids = segment_ids[..., None]
    hidden, _ = self.rnns(steps)
    output = sequence_losses.loss_or_predictions(self.softmax, hidden, labels)
    output.last_hidden = hidden
    return output

  def _embed(self, inputs: jax.Array, condition: jax.Array | None) -> jax.Array:
    """Returns the first layer's inputs, [B, T, D + C]."""
    if self.embedding_tpl is None:
      return self._with_condition(inputs, condition)
    vectors = self._with_condition(self.embedding.emb_lookup(inputs), condition)
    return self.embedding_dropout(vectors)

  def _with_condition(
    self, vectors: jax.Array, condition: jax.Array | None
  ) -> jax.Array:
    """Concatenates a condition [B, C] to each of the vectors [B, T, D]."""
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
    """Initialises the decode states, before the first `extend_step`.

    Args:
      batch_size: B.
      max_length: ignored: the number of positions is unlimited.
      condition: [B, C].
    """
    del max_length
    if condition is not None:
      self.update_decode_state('condition', condition)
    self.update_decode_state('rnns', self.rnns.init_states(batch_size))

  def extend_step(
    self,
    inputs: jax.Array,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
    *,
    time_step: jax.Array,
  ) -> NestedMap:
    """Runs a decoding step; see `TransformerLm.extend_step`.

    Args:
      inputs: [B, L], int, the new tokens; or vectors [B, L, D].
      segment_pos: ignored.
      atten_mask: [B, 1, 1, T], hides padding, such as that before a
        right-aligned prefix; None for no padding.
      time_step: [], the index of the first of them.

    Returns:
      `logits`, `log_probs` and `probs` [B, L, V].
    """
    del segment_pos
    paddings = step_paddings(inputs, time_step, atten_mask)
    condition = None
    if self.condition_dims:
      condition = self.get_decode_state('condition')
    steps = self._steps(self._embed(inputs, condition), paddings)
    hidden, state = self.rnns(steps, self.get_decode_state('rnns'))
    self.update_decode_state('rnns', state)
    return sequence_losses.loss_or_predictions(self.softmax, hidden, None)


def step_paddings(
  inputs: jax.Array, time_step: jax.Array, mask: Mask
) -> jax.Array:
  """Returns paddings [B, L] of a decoding step; see `RnnLm.extend_step`.

  Args:
    inputs: [B, L, ...], of the step.
    time_step: [], the index of the first of them.
    mask: [B, 1, 1, T], hides padding; None for no padding.
  """
  paddings = jnp.zeros(inputs.shape[:2])
  visible = AttentionMask.of(mask, where='RnnLm.extend_step').visible
  if visible is None:
    return paddings
  size = inputs.shape[1]
  visible = jax.lax.dynamic_slice_in_dim(visible[:, 0, 0], time_step, size, 1)
  return jnp.broadcast_to(1.0 - visible, paddings.shape)
