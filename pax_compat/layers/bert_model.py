"""The model that predicts tokens which were masked.

Shapes: B batch, T time.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_model, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import token_models
from pax_compat.layers.template_fields import agreed
from pax_compat.layers.transformer_models import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.nested_map import NestedMap


class BertModel(base_model.BaseModel):
  """Predicts masked tokens from all others, https://arxiv.org/abs/1810.04805.

  A batch has `labels` [B, T] int, the tokens; `masked_ids` [B, T] int, what the
  model sees of them; `masked_pos` [B, T], 1 where a token is to be predicted;
  `paddings` [B, T]; where `lm_tpl.packed_input` is on, `segment_ids` [B, T],
  1, 2, ... for the examples and 0 for padding, and perhaps `segment_pos`
  [B, T]; and perhaps `eval_sample_weights` [B].

  Metrics are in nats: `total_loss`, also called `loss`; `avg_xent`, also called
  `log_pplx`; `fraction_of_correct_preds`; `num_predictions`; `num_tokens`,
  those that are no padding; and `num_seqs`, the examples. Auxiliary losses of
  layers are not in them.

  Attributes:
    lm_tpl: the network; the model makes it bidirectional.
    label_smoothing_prob: the probability that the target distribution takes
      from the right token and gives to the others in equal parts; None, the
      default, leaves it to the network's `softmax_tpl`.
    mask_token_id: refused; batches have their tokens masked already.
    force_mask_generation: refused, likewise.
  """

  lm_tpl: Config = sub_config_field(TransformerLm)
  label_smoothing_prob: float | None = None
  mask_token_id: int | None = None
  force_mask_generation: bool = False

  def setup(self):
    for name, value in (
      ('mask_token_id', self.mask_token_id),
      ('force_mask_generation', self.force_mask_generation or None),
    ):
      if value is not None:
        raise errors.UserError(
          f'BertModel.{name} is {value!r}, but the model masks no tokens'
          ' itself; expected it to be unset, and masked_ids and masked_pos in'
          ' the batch'
        )
    where = 'BertModel.lm_tpl'
    fields = agreed(
      where, self.lm_tpl, model_type=LanguageModelType.BIDIRECTIONAL
    )
    fields |= token_models.with_label_smoothing(
      where, self.lm_tpl, self.label_smoothing_prob
    )
    self.create_child('lm', self.lm_tpl, **fields)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output, `augmented_labels` and `augmented_pos`.

    The two latter are what the network saw, [B, T], and how much each token
    counts, [B, T].
    """
    missing = [k for k in ('masked_ids', 'masked_pos') if k not in input_batch]
    if missing:
      raise errors.UserError(
        f'BertModel: the batch has no {" and no ".join(missing)}; expected'
        ' batches whose tokens are masked already'
      )
    weights = token_models.token_weights(
      input_batch.masked_pos, token_models.example_weights(input_batch)
    )
    segments = {}
    if getattr(self.lm, 'packed_input', False):
      names = ('segment_ids', 'segment_pos')
      segments = {name: input_batch.get(name) for name in names}
    output = self.lm(
      input_batch.masked_ids,
      input_batch.paddings,
      NestedMap(class_ids=input_batch.labels, class_weights=weights),
      **segments,
    )
    output.augmented_labels = input_batch.masked_ids
    output.augmented_pos = weights
    return output

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and what is said of each example.

    The latter are `per_sequence_xent` [B], `predicted_labels` and
    `augmented_labels` [B, T], `activations` where the network returns them, and
    `eval_sample_weights`, if there are any.
    """
    weights = predictions.augmented_pos
    metrics = token_models.token_metrics(
      predictions, input_batch.labels, weights
    )
    right = metrics.pop('fraction_of_correct_next_step_preds')
    metrics.fraction_of_correct_preds = right
    metrics.update(_sizes(input_batch))
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
      outputs[token_models.EXAMPLE_WEIGHTS] = of_examples
    return metrics, outputs


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
