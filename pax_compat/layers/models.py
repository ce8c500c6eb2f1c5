"""Models: networks with a loss.

Shapes: B batch, T time.
"""

import jax.numpy as jnp

from pax_compat import base_model
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import transformer_models
from pax_compat.nested_map import NestedMap


class LanguageModel(base_model.BaseModel):
  """Predicts each next token.

  The batch has `ids`, `labels` [B, T] int, `paddings` and `weights` [B, T]
  float, and perhaps `word_count` [B] int. Metrics are those of Lingvo's
  `LanguageModel`, in nats: `loss`, `log_pplx` (the mean over tokens),
  `log_pplx_per_word`, `fraction_of_correct_next_step_preds`, `num_predictions`
  and `num_words`.

  Attributes:
    lm_tpl: the network.
    sum_loss: whether the loss is the sum over the batch's tokens instead of
      their mean.
  """

  lm_tpl: Config = sub_config_field(transformer_models.TransformerLm)
  sum_loss: bool = False

  def setup(self):
    self.create_child('lm', self.lm_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output for the batch."""
    labels = NestedMap(
      class_ids=input_batch.labels, class_weights=input_batch.weights
    )
    return self.lm(input_batch.ids, input_batch.paddings, labels)

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the loss of each example [B]."""
    weights = input_batch.weights.astype(jnp.float32)
    total = predictions.total_weight
    right = predictions.per_example_argmax == input_batch.labels
    metrics = NestedMap(
      loss=(
        predictions.total_xent if self.sum_loss else predictions.avg_xent,
        total,
      ),
      log_pplx=(predictions.avg_xent, total),
      fraction_of_correct_next_step_preds=(
        jnp.sum(right * weights) / jnp.maximum(total, 1e-6),
        total,
      ),
      num_predictions=(total, 1.0),
    )
    if 'word_count' in input_batch:
      metrics.update(self._per_word(predictions, input_batch))
    per_token = predictions.per_example_xent * weights
    return metrics, NestedMap(loss=jnp.sum(per_token, axis=1))

  def _per_word(self, predictions, input_batch) -> NestedMap:
    # One more for each example: the end of its sentence. An example that only
    # fills the batch counts no words.
    counted = jnp.max(input_batch.weights, axis=1)
    words = jnp.sum((input_batch.word_count + 1) * counted)
    return NestedMap(
      log_pplx_per_word=(
        predictions.total_xent / jnp.maximum(words, 1.0),
        words,
      ),
      num_words=(words, 1.0),
    )
