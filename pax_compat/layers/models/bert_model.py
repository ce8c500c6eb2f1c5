"""A masked language model.

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
from pax_compat.layers.template_fields import agreed, create_agreed
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.nested_map import NestedMap


class BertModel(base_model.BaseModel):
  """Predicts masked tokens from all others, https://arxiv.org/abs/1810.04805.

  A batch has `labels` [B, T] int, the tokens; `paddings` [B, T]; optionally
  `masked_ids` [B, T] int, the masked tokens, and `masked_pos` [B, T], 1 for
  tokens to predict, else the model masks tokens itself; with
  `lm_tpl.packed_input`, `segment_ids` [B, T], 1, 2, ... for the examples and 0
  for padding, and optionally `segment_pos` [B, T]; and optionally
  `eval_sample_weights` [B].

  Metrics are in nats: `total_loss`, also named `loss`; `avg_xent`, also named
  `log_pplx`; `fraction_of_correct_preds`; `num_predictions`; `num_tokens`,
  without padding; `num_seqs`, the examples; and `aux_loss`, the sum of the
  auxiliary losses of layers, which is part of `total_loss` only.

  Attributes:
    lm_tpl: the network; the model makes it bidirectional.
    label_smoothing_prob: the probability that label smoothing distributes
      uniformly over all other tokens; None, the default, keeps that of the
      network's `softmax_tpl`.
    mask_token_id: the mask token; None keeps that of `mlm_augmenter_tpl`.
    force_mask_generation: whether the model masks tokens itself even if the
      batch has `masked_ids`.
    mlm_augmenter_tpl: masks tokens, in training and in evaluation; None
      requires `masked_ids` in the batch.
  """

  lm_tpl: Config = sub_config_field(TransformerLm)
  label_smoothing_prob: float | None = None
  mask_token_id: int | None = 0
  force_mask_generation: bool = False
  mlm_augmenter_tpl: Config | None = sub_config_field(MaskedLmDataAugmenter)

  def setup(self):
    self.create_child('lm', self.lm_tpl, **self._network_fields())
    if self.mlm_augmenter_tpl is not None:
      create_agreed(
        self,
        'mlm_augmenter',
        'mlm_augmenter_tpl',
        vocab_size=self.lm_tpl.vocab_size,
        mask_token_id=self.mask_token_id,
      )

  def _network_fields(self) -> dict[str, Any]:
    """Returns the fields that the model sets on the network."""
    where = f'{type(self).__name__}.lm_tpl'
    bidirectional = LanguageModelType.BIDIRECTIONAL
    return {
      **agreed(where, self.lm_tpl, model_type=bidirectional),
      **token_models.with_label_smoothing(
        where, self.lm_tpl, self.label_smoothing_prob
      ),
    }

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output, `augmented_labels` and `augmented_pos`.

    The latter are the masked tokens [B, T], and the weights of predictions
    [B, T].
    """
    labels = self._labels(input_batch)
    maskable = self._maskable(input_batch)
    masked_ids, masked_pos = self._mask(input_batch, labels, 1 - maskable)
    weights = token_models.token_weights(
      masked_pos * maskable, token_models.example_weights(input_batch)
    )
    segments = {}
    if getattr(self.lm, 'packed_input', False):
      segments = token_models.segments('BertModel', input_batch)
    output = self._predict(
      masked_ids,
      self._paddings(input_batch),
      NestedMap(class_ids=labels, class_weights=weights),
      **segments,
    )
    output.augmented_labels = masked_ids
    output.augmented_pos = weights
    return output

  def _predict(self, *args: Any, **kwargs: Any) -> NestedMap:
    """Returns the network's output."""
    return self.lm(*args, **kwargs)

  def _labels(self, input_batch: NestedMap) -> jax.Array:
    """Returns the tokens [B, T]."""
    return input_batch.labels

  def _paddings(self, input_batch: NestedMap) -> jax.Array:
    """Returns the paddings for the network, [B, T]."""
    return input_batch.paddings

  def _maskable(self, input_batch: NestedMap) -> jax.Array:
    """Returns 1 for tokens that can be masked and predicted, else 0; [B, T]."""
    return 1 - self._paddings(input_batch)

  def _mask(
    self, input_batch: NestedMap, labels: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the masked tokens, and 1 for those to predict; each [B, T]."""
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
        f'{where}.mlm_augmenter_tpl is None, so the model cannot mask tokens;'
        ' expected masked_ids and masked_pos in the batch, and'
        ' force_mask_generation=False'
      )
    return self.mlm_augmenter(labels, paddings)

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs.

    The latter are `per_sequence_xent` [B], `predicted_labels` and
    `augmented_labels` [B, T], `activations` if the network returns them, and
    `eval_sample_weights` if the batch has them.
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
    metrics.fraction_of_correct_preds = metrics.pop(
      'fraction_of_correct_next_step_preds'
    )
    if 'aux_loss' in metrics:
      metrics.aux_loss = predictions.aux_loss, predictions.total_weight
    metrics.update(_sizes(input_batch))
    return metrics


def _sizes(input_batch: NestedMap) -> dict[str, tuple[jax.Array, float]]:
  """Returns the metrics of the number of tokens and examples."""
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
