"""The model that predicts tokens which were masked.

Shapes: B batch, T time.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_model, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.input_core import example_rows
from pax_compat.layers.models import token_models
from pax_compat.layers.models.masked_lm import MaskedLmDataAugmenter
from pax_compat.layers.template_fields import agreed
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.nested_map import NestedMap


class BertModel(base_model.BaseModel):
  """Predicts masked tokens from all others, https://arxiv.org/abs/1810.04805.

  A batch has `labels` [B, T] int, the tokens; `paddings` [B, T]; perhaps
  `masked_ids` [B, T] int, what the model sees of the tokens, and `masked_pos`
  [B, T], 1 where a token is to be predicted, else the model masks tokens
  itself; where `lm_tpl.packed_input` is on, `segment_ids` [B, T], 1, 2, ... for
  the examples and 0 for padding, and perhaps `segment_pos` [B, T]; and perhaps
  `eval_sample_weights` [B].

  Metrics are in nats: `total_loss`, also called `loss`; `avg_xent`, also called
  `log_pplx`; `fraction_of_correct_preds`; `num_predictions`; `num_tokens`,
  those that are no padding; and `num_seqs`, the examples. Auxiliary losses of
  layers are not in them.

  Attributes:
    lm_tpl: the network; the model makes it bidirectional.
    label_smoothing_prob: the probability that the target distribution takes
      from the right token and gives to the others in equal parts; None, the
      default, leaves it to the network's `softmax_tpl`.
    mask_token_id: what a token is masked by; None leaves it to
      `mlm_augmenter_tpl`.
    force_mask_generation: whether the model masks tokens itself also where a
      batch has them masked.
    mlm_augmenter_tpl: how it masks them, in training and at evaluation; None if
      it is not to do so.
  """

  lm_tpl: Config = sub_config_field(TransformerLm)
  label_smoothing_prob: float | None = None
  mask_token_id: int | None = 0
  force_mask_generation: bool = False
  mlm_augmenter_tpl: Config | None = sub_config_field(MaskedLmDataAugmenter)

  def setup(self):
    self.create_child('lm', self.lm_tpl, **self._network_fields())
    if self.mlm_augmenter_tpl is not None:
      self._create_augmenter(self.mlm_augmenter_tpl)

  def _network_fields(self) -> dict[str, Any]:
    """Returns what the model says of the network."""
    where = f'{type(self).__name__}.lm_tpl'
    bidirectional = LanguageModelType.BIDIRECTIONAL
    return {
      **agreed(where, self.lm_tpl, model_type=bidirectional),
      **token_models.with_label_smoothing(
        where, self.lm_tpl, self.label_smoothing_prob
      ),
    }

  def _create_augmenter(self, tpl: Config):
    where = f'{type(self).__name__}.mlm_augmenter_tpl'
    fields = agreed(
      where,
      tpl,
      vocab_size=self.lm_tpl.vocab_size,
      mask_token_id=self.mask_token_id,
    )
    self.create_child('mlm_augmenter', tpl, **fields)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output, `augmented_labels` and `augmented_pos`.

    The two latter are what the network saw, [B, T], and how much each token
    counts, [B, T].
    """
    labels = self._labels(input_batch)
    counted = self._counted(input_batch)
    seen, masked_pos = self._mask(input_batch, labels, 1 - counted)
    weights = token_models.token_weights(
      masked_pos * counted, token_models.example_weights(input_batch)
    )
    segments = {}
    if getattr(self.lm, 'packed_input', False):
      names = ('segment_ids', 'segment_pos')
      segments = {name: input_batch.get(name) for name in names}
    output = self._predict(
      seen,
      self._paddings(input_batch),
      NestedMap(class_ids=labels, class_weights=weights),
      **segments,
    )
    output.augmented_labels = seen
    output.augmented_pos = weights
    return output

  def _predict(self, *args: Any, **kwargs: Any) -> NestedMap:
    """Returns the network's output."""
    return self.lm(*args, **kwargs)

  def _labels(self, input_batch: NestedMap) -> jax.Array:
    """Returns the tokens [B, T]."""
    return input_batch.labels

  def _paddings(self, input_batch: NestedMap) -> jax.Array:
    """Returns what the network is told of padding, [B, T]."""
    return input_batch.paddings

  def _counted(self, input_batch: NestedMap) -> jax.Array:
    """Returns which tokens can be masked and counted, [B, T], 0 or 1."""
    return 1 - self._paddings(input_batch)

  def _mask(
    self, input_batch: NestedMap, labels: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns what the network sees and what it is to predict, each [B, T]."""
    missing = [k for k in ('masked_ids', 'masked_pos') if k not in input_batch]
    force = self.force_mask_generation
    if not missing and not force:
      return input_batch.masked_ids, input_batch.masked_pos
    where = type(self).__name__
    if len(missing) == 1 and not force:
      raise errors.UserError(
        f'{where}: the batch has no {missing[0]}; expected masked_ids and'
        ' masked_pos, or neither of them'
      )
    if self.mlm_augmenter_tpl is None:
      raise errors.UserError(
        f'{where}.mlm_augmenter_tpl is None, so the model masks no tokens;'
        ' expected masked_ids and masked_pos in the batch, and'
        ' force_mask_generation to be off'
      )
    return self.mlm_augmenter(labels, paddings)

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and what is said of each example.

    The latter are `per_sequence_xent` [B], `predicted_labels` and
    `augmented_labels` [B, T], `activations` where the network returns them, and
    `eval_sample_weights`, if there are any.
    """
    metrics = self._metrics(predictions, input_batch)
    weights = predictions.augmented_pos
    outputs = NestedMap(
      per_sequence_xent=jnp.sum(
        predictions.per_example_xent * weights, axis=-1
      ),
      predicted_labels=predictions.per_example_argmax,
      augmented_labels=predictions.augmented_labels,
    )
    if 'activations' in predictions:
      outputs.activations = predictions.activations
    of_examples = token_models.example_weights(input_batch)
    if of_examples is not None:
      outputs[example_rows.WEIGHTS] = of_examples
    return metrics, outputs

  def _metrics(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> NestedMap:
    """Returns the weighted metrics."""
    metrics = token_models.token_metrics(
      predictions, self._labels(input_batch), predictions.augmented_pos
    )
    right = metrics.pop('fraction_of_correct_next_step_preds')
    metrics.fraction_of_correct_preds = right
    metrics.update(_sizes(input_batch))
    return metrics


def _sizes(input_batch: NestedMap) -> dict[str, tuple[jax.Array, float]]:
  """Returns how many tokens and examples a batch has."""
  tokens = token_models.token_weights(
    1.0 - input_batch.paddings, token_models.example_weights(input_batch)
  )
  of_rows = token_models.example_weights(input_batch)
  if 'segment_ids' in input_batch:
    examples = jnp.max(input_batch.segment_ids, axis=1).astype(jnp.float32)
  else:
    examples = jnp.any(input_batch.paddings == 0, axis=1).astype(jnp.float32)
  if of_rows is not None:
    examples = examples * of_rows
  return {
    'num_tokens': (jnp.sum(tokens), 1.0),
    'num_seqs': (jnp.sum(examples), 1.0),
  }
