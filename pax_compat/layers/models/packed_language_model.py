"""A model that predicts the next token of packed text, with GShard's metrics.

Shapes: B batch, T time, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_model, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers.models import aux_losses, token_models
from pax_compat.layers.softmaxes.full_softmax import SMALL
from pax_compat.layers.template_fields import create_agreed
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.nested_map import NestedMap

_FIELDS = ('ids', 'labels', 'segment_ids', 'segment_pos')


class PackedLanguageModel(base_model.BaseModel):
  """Predicts the next token of packed examples.

  A batch has, below `tgt` or at the top level, `ids` and `labels` [B, T] int;
  `segment_ids` [B, T] int, 1, 2, ... for the examples of a row and 0 for
  padding; and `segment_pos` [B, T] int, the position of each token within its
  example. Optional are `paddings` [B, T], 1 for tokens of weight 0, by default
  padding and tokens whose label is 0 or less; `soft_labels` [B, T, V], target
  distributions instead of labels; `word_count` and `num_sentences` [B] int;
  and, at the top level, `eval_sample_weights` [B], 0 for padding rows.

  Metrics are in nats: `loss`, auxiliary losses included; `mean_xent`, the mean
  cross-entropy of labels, and `soft_labels_xent`, that of the targets; `acc1`,
  the fraction of correct tokens, and `whole_tgt_accuracy`, of correct rows;
  `weight`, the total weight of tokens; `num_packed_examples`;
  `batch_utilized_ratio`, the fraction of positions without padding;
  `avg_z_loss_increment` and `aux_loss`, summands of `loss`; and with
  `word_count` `num_words` and `log_pplx_per_word`.

  Attributes:
    lm_tpl: the network. Its `softmax_tpl` sets the denominator of the loss.
  """

  lm_tpl: Config = sub_config_field(TransformerLm)

  def setup(self):
    create_agreed(self, 'lm', 'lm_tpl', packed_input=True)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output, and its `aux_loss` []."""
    tokens = _tokens(input_batch)
    labels = NestedMap(
      # A label below 0 marks a token that is not predicted.
      class_ids=jnp.maximum(tokens.labels, 0),
      class_weights=_weights(input_batch),
    )
    if 'soft_labels' in tokens:
      labels.class_probabilities = tokens.soft_labels
    output, aux_loss = aux_losses.call_and_take(
      self.lm,
      tokens.ids,
      (tokens.segment_ids == 0).astype(jnp.float32),
      labels,
      segment_ids=tokens.segment_ids,
      segment_pos=tokens.segment_pos,
    )
    output.aux_loss = aux_loss
    return output

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    tokens, weights = _tokens(input_batch), _weights(input_batch)
    rows = token_models.example_weights(input_batch)
    if rows is None:
      rows = jnp.ones(tokens.labels.shape[0])
    num_rows = jnp.sum(rows)
    aux_loss = predictions.aux_loss
    fraction = self._denominator_fraction(rows)
    z_loss = predictions.get('z_loss', jnp.float32(0.0)) / fraction
    loss = predictions.avg_xent / fraction + z_loss + aux_loss
    total = jnp.sum(weights)
    xent = jnp.sum(_hard_xent(predictions, tokens.labels) * weights)
    soft_xent = predictions.total_xent / jnp.maximum(total, SMALL)
    correct = (predictions.per_example_argmax == tokens.labels) * weights
    all_correct = jnp.sum(correct, axis=1) == jnp.sum(weights, axis=1)
    num_examples = jnp.max(tokens.segment_ids, axis=1) * rows
    used = (tokens.segment_ids != 0) * rows[:, None]
    one = (num_rows > 0).astype(jnp.float32)
    least = jnp.maximum(num_rows, 1.0)
    metrics = NestedMap(
      num_packed_examples=(jnp.sum(num_examples), one),
      batch_utilized_ratio=(jnp.sum(used) / (least * used.shape[1]), one),
      acc1=(jnp.sum(correct) / jnp.maximum(total, SMALL), total),
      whole_tgt_accuracy=(jnp.sum(all_correct * rows) / least, one),
      mean_xent=(xent / jnp.maximum(total, SMALL), total),
      soft_labels_xent=(soft_xent, total),
      weight=(total, one),
      loss=(loss, one),
      aux_loss=(aux_loss, one),
      avg_z_loss_increment=(z_loss, one),
    )
    if 'word_count' in tokens:
      words = tokens.word_count + tokens.get('num_sentences', 0)
      words = jnp.sum(words * rows)
      metrics.num_words = (words, one)
      metrics.log_pplx_per_word = (xent / jnp.maximum(words, 1.0), words)
    return metrics, token_models.example_outputs(
      predictions,
      tokens.labels,
      weights,
      token_models.example_weights(input_batch),
    )

  def _denominator_fraction(self, rows: jax.Array) -> jax.Array:
    """Returns the fraction of the softmax's denominator without padding rows.

    Args:
      rows: [B], weights of rows.
    """
    softmax = self.lm.softmax
    over_all = getattr(
      softmax, 'use_tgt_labels_size_as_loss_denominator', False
    )
    fixed = getattr(softmax, 'fixed_loss_denominator', None) is not None
    if fixed or not over_all:
      return jnp.float32(1.0)
    return jnp.maximum(jnp.sum(rows), 1.0) / len(rows)


def _tokens(input_batch: NestedMap) -> NestedMap:
  """Returns `tgt` of a batch, or the batch itself.

  Raises:
    UserError: it lacks fields of packed tokens.
  """
  tokens = input_batch.get('tgt', input_batch)
  missing = [name for name in _FIELDS if name not in tokens]
  if missing:
    raise errors.UserError(
      f'PackedLanguageModel: the batch has no {", ".join(missing)}; expected'
      f' {", ".join(_FIELDS)}, below tgt or at the top level'
    )
  return tokens


def _weights(input_batch: NestedMap) -> jax.Array:
  """Returns the weights of tokens, [B, T] float32."""
  tokens = _tokens(input_batch)
  if 'paddings' in tokens:
    weights = 1.0 - tokens.paddings
  else:
    weights = (tokens.segment_ids != 0) & (tokens.labels > 0)
  return token_models.token_weights(
    weights, token_models.example_weights(input_batch)
  )


def _hard_xent(predictions: NestedMap, labels: jax.Array) -> jax.Array:
  """Returns the cross-entropy of labels [B, T], 0 for labels below 0."""
  if 'per_example_nll' in predictions:
    xent = predictions.per_example_nll
  elif 'log_probs' in predictions:
    ids = jnp.maximum(labels, 0)[..., None]
    xent = -jnp.take_along_axis(predictions.log_probs, ids, axis=-1)[..., 0]
  else:
    xent = predictions.per_example_xent
  return jnp.where(labels >= 0, xent, 0.0)
