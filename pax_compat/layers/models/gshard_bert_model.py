"""A masked language model with the loss and metrics of GShard.

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
  """A `BertModel` of packed tokens with the metrics of Lingvo's GShard model.

  A batch has `ids` [B, T] int, the tokens; `segment_ids` [B, T], 1, 2, ... for
  the examples and 0 for padding; and `segment_pos` [B, T]. Optional are
  `masked_ids` and `masked_pos`, as for a `BertModel`; `paddings` [B, T], 1 for
  tokens that cannot be masked, by default those of segment 0 and ids below 1;
  and `eval_sample_weights` [B].

  With M masked tokens in a batch of B examples, the metrics are, in nats:

  * `loss`, of weight 1: the cross-entropy and the softmax's z-loss, summed over
    the masked tokens, over M (or a `fixed_loss_denominator` of the softmax),
    and the auxiliary losses of layers;
  * `avg_z_loss_increment` and `aux_loss`, of weight 1: summands of it;
  * `acc1`, `mean_xent` and `soft_labels_xent`, of weight M: the accuracy, and
    the mean cross-entropy with hard labels, and with smoothed ones;
  * `weight`, of weight 1: M;
  * `num_total_tokens` and `num_masked_tokens`, of weight B: the number per
    example of tokens that can be masked, and that are masked.

  A batch without masked tokens has no cross-entropy. All metrics of a batch of
  padding rows have weight 0.
  """

  lm_tpl: Config = sub_config_field(
    TransformerLm,
    softmax_tpl=sub_config_field(GShardSharedEmbeddingSoftmax),
    packed_input=True,
  )

  def _network_fields(self) -> dict[str, Any]:
    fields = super()._network_fields()
    softmax = fields.get('softmax_tpl', self.lm_tpl.softmax_tpl)
    # The denominator is the number of masked tokens; the model adds the z-loss.
    settings = dict(z_loss_is_aux=False)
    if _OVER_ALL in field_names(softmax):
      settings[_OVER_ALL] = False
    where = f'{type(self).__name__}.lm_tpl.softmax_tpl'
    settings = agreed(where, softmax, **settings)
    # A shallow copy: templates inside keep their identity.
    return {**fields, 'softmax_tpl': copy.copy(softmax).set(**settings)}

  def _predict(self, *args: Any, **kwargs: Any) -> NestedMap:
    output, aux_loss = aux_losses.call_and_take(self.lm, *args, **kwargs)
    output.aux_loss = aux_loss
    return output

  def _labels(self, input_batch: NestedMap) -> jax.Array:
    return input_batch.ids

  def _paddings(self, input_batch: NestedMap) -> jax.Array:
    return (input_batch.segment_ids == 0).astype(jnp.float32)

  def _maskable(self, input_batch: NestedMap) -> jax.Array:
    if 'paddings' in input_batch:
      return 1 - input_batch.paddings
    maskable = (input_batch.segment_ids != 0) & (input_batch.ids > 0)
    return maskable.astype(jnp.float32)

  def _metrics(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> WeightedScalars:
    weights = predictions.augmented_pos
    number = jnp.sum(weights)
    least = jnp.maximum(number, SMALL)
    z_loss = predictions.get('z_loss', jnp.float32(0.0))
    loss = predictions.avg_xent + z_loss + predictions.aux_loss
    nll = predictions.get('per_example_nll', predictions.per_example_xent)
    correct = predictions.per_example_argmax == input_batch.ids
    of_examples = token_models.example_weights(input_batch)
    tokens = token_models.token_weights(
      self._maskable(input_batch), of_examples
    )
    rows = jnp.float32(len(weights))
    if of_examples is not None:
      rows = jnp.sum(of_examples)
    one = (rows > 0).astype(jnp.float32)
    per_row = 1 / jnp.maximum(rows, 1.0)
    return NestedMap(
      loss=(loss, one),
      avg_z_loss_increment=(z_loss, one),
      aux_loss=(predictions.aux_loss, one),
      acc1=(jnp.sum(correct * weights) / least, number),
      mean_xent=(jnp.sum(nll * weights) / least, number),
      soft_labels_xent=(predictions.total_xent / least, number),
      weight=(number, one),
      num_total_tokens=(jnp.sum(tokens) * per_row, rows),
      num_masked_tokens=(number * per_row, rows),
    )
