"""Functions shared by models that predict tokens.

Shapes: B batch, T time.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_model import WeightedScalars
from pax_compat.config import Config
from pax_compat.input_core import example_rows
from pax_compat.layers.attentions.attention_masks import AttentionMask
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


def segments(where: str, batch: NestedMap) -> dict[str, jax.Array | None]:
  """Returns segment ids and positions of a batch with packed examples.

  Args:
    where: the model, for the error.
    batch: has `segment_ids` [B, T], unless it has a `segment_mask`.

  Raises:
    UserError: it has neither.
  """
  if 'segment_ids' not in batch and 'segment_mask' not in batch:
    raise errors.UserError(
      f'{where}: packed_input is True, but there are no segment_ids in the'
      f' batch; its fields are {", ".join(sorted(batch))}'
    )
  return {name: batch.get(name) for name in ('segment_ids', 'segment_pos')}


def example_weights(input_batch: NestedMap) -> jax.Array | None:
  """Returns the weights of examples [B]; None if all are 1."""
  return input_batch.get(example_rows.WEIGHTS)


def token_weights(
  weights: jax.Array, of_examples: jax.Array | None
) -> jax.Array:
  """Returns weights of tokens times those of their examples, [B, T] float32.

  Args:
    weights: [B, T], of tokens.
    of_examples: [B], of examples; None if all are 1.
  """
  weights = weights.astype(jnp.float32)
  return weights if of_examples is None else weights * of_examples[:, None]


def token_metrics(
  predictions: NestedMap, labels: jax.Array, weights: jax.Array
) -> NestedMap:
  """Returns the metrics of predicted tokens, in nats.

  Args:
    predictions: the output of a softmax.
    labels: [B, T], int, the correct tokens.
    weights: [B, T], of tokens.

  Returns:
    {name: (value, weight)}: `total_loss`, also named `loss`; `avg_xent`, also
    named `log_pplx`; `fraction_of_correct_next_step_preds`;
    `num_predictions`, of weight 1; and likewise `aux_loss`, if the predictions
    have it.
  """
  total = predictions.total_weight
  correct = (predictions.per_example_argmax == labels) * weights
  loss = predictions.get('total_loss', predictions.avg_xent)
  denominator = predictions.get('avg_xent_weight', total)
  metrics = NestedMap(
    total_loss=(loss, total),
    loss=(loss, total),
    avg_xent=(predictions.avg_xent, denominator),
    log_pplx=(predictions.avg_xent, denominator),
    fraction_of_correct_next_step_preds=(
      jnp.sum(correct) / jnp.maximum(total, 1e-6),
      total,
    ),
    num_predictions=(total, 1.0),
  )
  if 'aux_loss' in predictions:
    metrics.aux_loss = predictions.aux_loss, 1.0
  return metrics


def strict_accuracy(
  predictions: NestedMap, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the fraction of examples without a wrong token, and its weight.

  Tokens of weight 0, and examples of such tokens only, are ignored.

  Args:
    predictions: the output of a softmax.
    labels: [B, T], int.
    weights: [B, T].
  """
  correct = (predictions.per_example_argmax == labels) | (weights == 0)
  row_weights = jnp.any(weights > 0, axis=-1).astype(jnp.float32)
  total = jnp.sum(row_weights)
  all_correct = jnp.sum(jnp.all(correct, axis=-1) * row_weights)
  return all_correct / jnp.maximum(total, 1.0), total


def example_outputs(
  predictions: NestedMap,
  labels: jax.Array,
  weights: jax.Array,
  of_examples: jax.Array | None,
) -> NestedMap:
  """Returns the per-example outputs.

  Args:
    predictions: the output of a softmax.
    labels: [B, T], int.
    weights: [B, T].
    of_examples: [B], weights of examples, or None.

  Returns:
    `labels`; `scores` [B], the log-probability of an example's tokens; and
    `eval_sample_weights`, unless None.
  """
  xent = predictions.per_example_xent * weights
  outputs = NestedMap(labels=labels, scores=-jnp.sum(xent, axis=-1))
  if of_examples is not None:
    outputs[example_rows.WEIGHTS] = of_examples
  return outputs


def per_example_predictions(predictions: NestedMap, rows: int) -> NestedMap:
  """Returns those predictions that are arrays [B, ...].

  Args:
    predictions: the output of a softmax, arrays [B, ...] and scalars.
    rows: B.
  """
  return NestedMap(
    {
      name: x
      for name, x in predictions.items()
      if jnp.ndim(x) and x.shape[0] == rows
    }
  )


def with_label_smoothing(
  where: str, tpl: Config, prob: float | None
) -> dict[str, Any]:
  """Returns the field `softmax_tpl` of a network, with label smoothing.

  Args:
    where: the model's class and its field of `tpl`.
    tpl: the network's template, which has a `softmax_tpl`.
    prob: the probability of all other tokens together; None keeps that of the
      template.

  Raises:
    UserError: the template sets another probability.
  """
  if prob is None:
    return {}
  softmax = tpl.softmax_tpl
  fields = agreed(f'{where}.softmax_tpl', softmax, label_smoothing_prob=prob)
  # A shallow copy: templates inside keep their identity.
  return {'softmax_tpl': copy.copy(softmax).set(**fields)}


def decode_metrics(input_batch: NestedMap, rows: int) -> WeightedScalars:
  """Returns `num_decoded`, the number of examples without padding rows."""
  weights = example_weights(input_batch)
  number = jnp.float32(rows) if weights is None else jnp.sum(weights)
  return NestedMap(num_decoded=(number, jnp.float32(1.0)))


def decoder_step(
  model: Any,
  ids: jax.Array,
  *,
  causal: bool,
  mask: jax.Array | None = None,
  **step: jax.Array,
) -> jax.Array:
  """Returns logits of the decoder of an encoder-decoder [B, L, V].

  See `cached_network.ExtendStepFn`.
  """
  del causal  # Decoders are always causal.
  atten_mask = AttentionMask(mask, causal=True)
  return model.extend_step(ids, atten_mask=atten_mask, **step).logits
