"""What the models that predict tokens have in common.

Shapes: B batch, T time.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_model import WeightedScalars
from pax_compat.config import Config
from pax_compat.decoder_hparams import DecoderHParams, GreedyDecoderHParams
from pax_compat.input_core import example_rows
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


def example_weights(input_batch: NestedMap) -> jax.Array | None:
  """Returns how much each example counts, [B]; None if each one counts."""
  return input_batch.get(example_rows.WEIGHTS)


def token_weights(
  weights: jax.Array, of_examples: jax.Array | None
) -> jax.Array:
  """Returns how much each token counts, [B, T] float32.

  Args:
    weights: [B, T], of tokens.
    of_examples: [B], of examples; None if each one counts.
  """
  weights = weights.astype(jnp.float32)
  return weights if of_examples is None else weights * of_examples[:, None]


def token_metrics(
  predictions: NestedMap, labels: jax.Array, weights: jax.Array
) -> NestedMap:
  """Returns the metrics of predicted tokens, in nats.

  Args:
    predictions: what a softmax returned.
    labels: [B, T], int, the tokens that are right.
    weights: [B, T], how much each token counts.

  Returns:
    {name: (value, weight)}: `total_loss`, which is also called `loss`;
    `avg_xent`, also called `log_pplx`; `fraction_of_correct_next_step_preds`;
    and `num_predictions`, a number, of weight 1.
  """
  total = predictions.total_weight
  right = (predictions.per_example_argmax == labels) * weights
  loss = predictions.get('total_loss', predictions.avg_xent)
  return NestedMap(
    total_loss=(loss, total),
    loss=(loss, total),
    avg_xent=(predictions.avg_xent, total),
    log_pplx=(predictions.avg_xent, total),
    fraction_of_correct_next_step_preds=(
      jnp.sum(right) / jnp.maximum(total, 1e-6),
      total,
    ),
    num_predictions=(total, 1.0),
  )


def strict_accuracy(
  predictions: NestedMap, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the fraction of examples that are all right, and its weight.

  Tokens that do not count may be wrong; examples without any token that counts
  do not count.

  Args:
    predictions: what a softmax returned.
    labels: [B, T], int.
    weights: [B, T].
  """
  right = (predictions.per_example_argmax == labels) | (weights == 0)
  counted = jnp.any(weights > 0, axis=-1).astype(jnp.float32)
  number = jnp.sum(counted)
  all_right = jnp.sum(jnp.all(right, axis=-1) * counted)
  return all_right / jnp.maximum(number, 1.0), number


def example_outputs(
  predictions: NestedMap,
  labels: jax.Array,
  weights: jax.Array,
  of_examples: jax.Array | None,
) -> NestedMap:
  """Returns what is said of each example.

  Args:
    predictions: what a softmax returned.
    labels: [B, T], int.
    weights: [B, T].
    of_examples: [B], how much each example counts, or None.

  Returns:
    `labels`; `scores` [B], the log-probability of an example's tokens; and
    `eval_sample_weights`, if there are any.
  """
  xent = predictions.per_example_xent * weights
  outputs = NestedMap(labels=labels, scores=-jnp.sum(xent, axis=-1))
  if of_examples is not None:
    outputs[example_rows.WEIGHTS] = of_examples
  return outputs


def predictions_of_examples(predictions: NestedMap, rows: int) -> NestedMap:
  """Returns those predictions that say something of each example.

  Args:
    predictions: what a softmax returned, arrays [B, ...] and scalars.
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
  """Returns the field of a network's template that smooths its labels.

  Args:
    where: the model's class and the name of its field that holds `tpl`.
    tpl: the network's template, which has a `softmax_tpl`.
    prob: the probability that other tokens get; None leaves it to the template.

  Raises:
    UserError: the template smooths labels in another way.
  """
  if prob is None:
    return {}
  softmax = tpl.softmax_tpl
  fields = agreed(f'{where}.softmax_tpl', softmax, label_smoothing_prob=prob)
  # A shallow copy: the templates inside are the user's own ones.
  return {'softmax_tpl': copy.copy(softmax).set(**fields)}


def check_decoder(where: str, settings: Any):
  """Raises a UserError unless a model can be decoded with these settings."""
  if not isinstance(settings, DecoderHParams):
    raise errors.UserError(
      f'{where}.decoder_tpl is {settings!r}; expected the settings of a'
      ' decoder, such as GreedyDecoderHParams(seqlen=64)'
    )
  if not isinstance(settings, GreedyDecoderHParams):
    raise errors.UserError(
      f'{where}.decoder_tpl is a {type(settings).__name__}, which says nothing'
      ' of how tokens are chosen; expected a GreedyDecoderHParams'
    )
  settings.check_complete()


def decode_metrics(input_batch: NestedMap, rows: int) -> WeightedScalars:
  """Returns `num_decoded`, the number of examples that count, of weight 1."""
  counted = example_weights(input_batch)
  number = jnp.float32(rows) if counted is None else jnp.sum(counted)
  return NestedMap(num_decoded=(number, jnp.float32(1.0)))
