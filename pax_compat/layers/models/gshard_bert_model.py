"""The model of masked tokens whose loss and metrics are GShard's.

Shapes: B batch, T time.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat.base_model import WeightedScalars
from pax_compat.config import Config, field_names, sub_config_field
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.models import aux_losses, token_models
from pax_compat.layers.models.bert_model import BertModel
from pax_compat.layers.softmaxes.full_softmax import SMALL
from pax_compat.layers.template_fields import agreed
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.nested_map import NestedMap

_OVER_ALL = 'use_tgt_labels_size_as_loss_denominator'


class GShardBertModel(BertModel):
  """A `BertModel` of packed tokens that counts as Lingvo's does.

  A batch has `ids` [B, T] int, the tokens; `segment_ids` [B, T], 1, 2, ... for
  the examples and 0 for padding; `segment_pos` [B, T]; perhaps `masked_ids` and
  `masked_pos`, as for a `BertModel`; perhaps `paddings` [B, T], of which tokens
  cannot be masked, else those of segment 0 and ids below 1 cannot; and perhaps
  `eval_sample_weights` [B].

  With M masked tokens in a batch of B examples, the metrics are, in nats:

  * `loss`, of weight 1: the cross-entropy and the softmax's z-loss, summed over
    the masked tokens, over M (or a `fixed_loss_denominator` of the softmax),
    and the auxiliary losses of layers;
  * `avg_z_loss_increment` and `aux_loss`, of weight 1: parts of it;
  * `acc1`, `mean_xent` and `soft_labels_xent`, of weight M: the accuracy, and
    the mean cross-entropy with sharp labels, and with smoothed ones;
  * `weight`, of weight 1: M;
  * `num_total_tokens` and `num_masked_tokens`, of weight B: the tokens that can
    be masked, and those that are, for each example.

  A batch without a masked token has no cross-entropy. One of rows that only
  fill it up has weight 0 throughout.
  """

  lm_tpl: Config = sub_config_field(
    TransformerLm,
    softmax_tpl=sub_config_field(GShardSharedEmbeddingSoftmax),
    packed_input=True,
  )

  def _network_fields(self) -> dict[str, Any]:
    fields = super()._network_fields()
    softmax = fields.get('softmax_tpl', self.lm_tpl.softmax_tpl)
    # The model counts masked tokens, and the z-loss is in its own loss.
    said = dict(z_loss_is_aux=False)
    if _OVER_ALL in field_names(softmax):
      said[_OVER_ALL] = False
    where = f'{type(self).__name__}.lm_tpl.softmax_tpl'
    said = agreed(where, softmax, **said)
    # A shallow copy: the templates inside are the user's own ones.
    return {**fields, 'softmax_tpl': copy.copy(softmax).set(**said)}

  def _predict(self, *args: Any, **kwargs: Any) -> NestedMap:
    output, aux_loss = aux_losses.call_and_take(self.lm, *args, **kwargs)
    output.aux_loss = aux_loss
    return output

  def _labels(self, input_batch: NestedMap) -> jax.Array:
    return input_batch.ids

  def _paddings(self, input_batch: NestedMap) -> jax.Array:
    return (input_batch.segment_ids == 0).astype(jnp.float32)

  def _counted(self, input_batch: NestedMap) -> jax.Array:
    if 'paddings' in input_batch:
      return 1 - input_batch.paddings
    counted = (input_batch.segment_ids != 0) & (input_batch.ids > 0)
    return counted.astype(jnp.float32)

  def _metrics(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> WeightedScalars:
    weights = predictions.augmented_pos
    number = jnp.sum(weights)
    least = jnp.maximum(number, SMALL)
    z_loss = predictions.get('z_loss', jnp.float32(0.0))
    loss = predictions.avg_xent + z_loss + predictions.aux_loss
    nll = predictions.get('per_example_nll', predictions.per_example_xent)
    right = predictions.per_example_argmax == input_batch.ids
    of_examples = token_models.example_weights(input_batch)
    tokens = token_models.token_weights(self._counted(input_batch), of_examples)
    rows = jnp.float32(len(weights))
    if of_examples is not None:
      rows = jnp.sum(of_examples)
    one = (rows > 0).astype(jnp.float32)
    per_row = 1 / jnp.maximum(rows, 1.0)
    return NestedMap(
      loss=(loss, one),
      avg_z_loss_increment=(z_loss, one),
      aux_loss=(predictions.aux_loss, one),
      acc1=(jnp.sum(right * weights) / least, number),
      mean_xent=(jnp.sum(nll * weights) / least, number),
      soft_labels_xent=(predictions.total_xent / least, number),
      weight=(number, one),
      num_total_tokens=(jnp.sum(tokens) * per_row, rows),
      num_masked_tokens=(number * per_row, rows),
    )
