"""A language model with metrics of question answering, of Pax on GPUs.

Shapes: B batch, T tokens of a row, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors, layers
from pax_compat.nested_map import NestedMap

_LAMBADA, _BOOLQ = 'lambada', 'boolq'
_TASKS = (None, _LAMBADA, _BOOLQ)


class CustomMetricsLM(layers.LanguageModel):
  """`LanguageModel` with a metric for an evaluation of zero-shot tasks.

  Attributes:
    eval_task: 'lambada' for `acc_strict`, the fraction of examples whose
      weighted tokens are all predicted; 'boolq' for `boolq_acc`, the fraction
      whose answer has a larger logit than the other answer; None for none.
    boolq_yn_tokens: ids of "yes" and "no", for 'boolq'.
    report_strict_acc: the same as 'lambada'.
  """

  eval_task: str | None = None
  boolq_yn_tokens: Any = None
  report_strict_acc: bool = False

  def setup(self):
    super().setup()
    if self.eval_task not in _TASKS:
      raise errors.UserError(
        f'CustomMetricsLM.eval_task is {self.eval_task!r}; expected one of'
        f' {_TASKS}'
      )
    if self.eval_task == _BOOLQ and self.boolq_yn_tokens is None:
      raise errors.UserError(
        'CustomMetricsLM.boolq_yn_tokens is None; expected the ids of yes and'
        " no, which eval_task 'boolq' compares"
      )

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    metrics, outputs = super().compute_loss(predictions, input_batch)
    rows = input_batch.get('eval_sample_weights')
    if rows is None:
      rows = jnp.ones(len(input_batch.labels))
    rows = rows.astype(jnp.float32)
    weights = input_batch.weights.astype(jnp.float32)
    if self.apply_eval_sample_weights:
      weights = weights * rows[:, None]
    total = jnp.sum(rows)
    if self.eval_task == _LAMBADA or self.report_strict_acc:
      hits = predictions.per_example_argmax == input_batch.labels
      missed = jnp.sum(~hits * weights, axis=-1)
      found = jnp.sum((missed == 0) & (rows > 0))
      metrics.acc_strict = found / jnp.maximum(total, 1.0), total
    elif self.eval_task == _BOOLQ:
      ahead = self._lead_of_labels(predictions.logits, input_batch.labels) > 0
      metrics.boolq_acc = jnp.sum(ahead * weights) / total, total
    return metrics, outputs

  def _lead_of_labels(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns logits of labels minus those of the other answer, [B, T].

    Args:
      logits: [B, T, V].
      labels: [B, T].
    """
    other = sum(self.boolq_yn_tokens) - labels
    pair = jnp.stack([labels, other], axis=-1)
    of_label, of_other = jnp.moveaxis(
      jnp.take_along_axis(logits, pair, axis=-1), -1, 0
    )
    return of_label - of_other
