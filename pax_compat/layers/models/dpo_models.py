"""Direct preference optimization (DPO, arXiv:2305.18290).

A model learns from pairs of answers to the same prompt, of which one was
preferred, without moving far from a reference model. The loss of a pair is
-log sigmoid(beta * (log pi(w)/ref(w) - log pi(l)/ref(l))) for the preferred
answer w and the other one l.

Shapes: B pairs, S source time, T time.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, base_model, errors
from pax_compat.config import Config, instance_field, sub_config_field
from pax_compat.layers.embeddings import token_counter
from pax_compat.layers.models import token_models
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.nested_map import NestedMap

_HALVES = ('y_l', 'y_w')


class LanguageModelDPO(base_model.BaseModel):
  """Optimizes a language model by preferences.

  A batch has for `y_w`, the preferred sequences, and `y_l`, the others, prompts
  included and not packed: `y_w/inputs` and `y_w/labels/ids` [B, T] int,
  `y_w/labels/weights` [B, T], 0 for the prompt, and `y_w/paddings` [B, T]; with
  a packed network `y_w/segment_ids` and `y_w/segment_pos`, and for the model
  type 'prefix' `y_w/inputs_indicator`, [B, T] int. Optional are
  `eval_sample_weights` [B].

  The reference gets no gradient; give its weights to a warm start, and exclude
  `ref_mdl` from the learner if that decays weights.

  Metrics: `total_loss`, also named `loss`, the mean over pairs in nats; and
  `p_correct_ranking`, the mean probability of the preferred sequence.

  Attributes:
    ref_mdl: the reference.
    mdl: the network that is optimized.
    beta: the strength of the reference.
    token_counter: counts the tokens of training batches.
    apply_eval_sample_weights: whether `eval_sample_weights` are applied.
    model_type: a `LanguageModelType` or its name; that of both networks.
  """

  ref_mdl: Any = instance_field(TransformerLm)
  mdl: Any = instance_field(TransformerLm)
  beta: float = 0.1
  token_counter: Any = instance_field(token_counter.TokenCounter)
  apply_eval_sample_weights: bool = True
  model_type: str = LanguageModelType.CAUSAL

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of both networks for both sequences.

    They are `y_l_ref`, `y_l_pi`, `y_w_ref` and `y_w_pi`.
    """
    for name, network in (('ref_mdl', self.ref_mdl), ('mdl', self.mdl)):
      if network.model_type != self.model_type:
        raise errors.UserError(
          f'LanguageModelDPO.{name}.model_type is {str(network.model_type)!r};'
          f' expected that of LanguageModelDPO, {str(self.model_type)!r}'
        )
    outputs = NestedMap()
    for half in _HALVES:
      self.token_counter(_field(input_batch, half, 'paddings'))
      outputs[f'{half}_ref'] = self._run(self.ref_mdl, input_batch, half)
      outputs[f'{half}_pi'] = self._run(self.mdl, input_batch, half)
    return outputs

  def _run(
    self, network: base_layer.BaseLayer, batch: NestedMap, half: str
  ) -> NestedMap:
    given = {}
    if network.packed_input:
      for name in ('segment_ids', 'segment_pos'):
        given[name] = _field(batch, half, name)
    if self.model_type == LanguageModelType.PREFIX:
      indicator = _field(batch, half, 'inputs_indicator')
      given['causal_attention_mask'] = 1 - indicator
    return network(
      _field(batch, half, 'inputs'),
      _field(batch, half, 'paddings'),
      NestedMap(
        class_ids=_field(batch, half, 'labels/ids'),
        class_weights=_field(batch, half, 'labels/weights'),
      ),
      **given,
    )

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and `scores` [B], the margins in nats."""
    weights = None
    if self.apply_eval_sample_weights:
      weights = token_models.example_weights(input_batch)
    return dpo_loss(self, predictions, weights)


class SequenceModelDPO(base_model.BaseModel):
  """Optimizes a sequence-to-sequence model by preferences.

  A batch has the sources, `inputs` and `input_paddings` [B, S], and for the
  preferred targets `w`, and the others `l`: `targets_w` and
  `targets_w/labels/ids` [B, T] int, `targets_w/labels/weights` and
  `targets_w/paddings` [B, T]. A batch of a `SequenceModel`, which has `src`, is
  evaluated as by that model.

  For the rest see `LanguageModelDPO`; the weights of the reference are those of
  `ref_model`.

  Attributes:
    model_tpl: the network.
    beta: the strength of the reference.
    label_smoothing_prob: as for `SequenceModel`.
  """

  model_tpl: Config = sub_config_field(TransformerEncoderDecoder)
  beta: float = 0.1
  label_smoothing_prob: float | None = None

  def setup(self):
    fields = token_models.with_label_smoothing(
      'SequenceModelDPO.model_tpl', self.model_tpl, self.label_smoothing_prob
    )
    self.create_child('model', self.model_tpl, **fields)
    self.create_child('ref_model', self.model_tpl.clone(), **fields)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of the networks; see `LanguageModelDPO`."""
    if 'src' in input_batch:
      src, tgt = input_batch.src, input_batch.tgt
      return self._run(
        self.model,
        (src.ids, src.paddings),
        (tgt.ids, tgt.paddings, tgt.labels, tgt.weights),
      )
    source = [
      _field(input_batch, '', name) for name in ('inputs', 'input_paddings')
    ]
    outputs = NestedMap()
    for half in _HALVES:
      path = f'targets_{half[-1]}'
      target = [_field(input_batch, '', path)] + [
        _field(input_batch, path, name)
        for name in ('paddings', 'labels/ids', 'labels/weights')
      ]
      outputs[f'{half}_ref'] = self._run(self.ref_model, source, target)
      outputs[f'{half}_pi'] = self._run(self.model, source, target)
    return outputs

  def _run(self, network, source, target) -> NestedMap:
    ids, paddings, labels, weights = target
    return network(
      inputs=source[0],
      input_paddings=source[1],
      targets=ids,
      target_paddings=paddings,
      labels=NestedMap(class_ids=labels, class_weights=weights),
    )

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and `scores` [B], the margins in nats."""
    if 'src' not in input_batch:
      return dpo_loss(
        self, predictions, token_models.example_weights(input_batch)
      )
    tgt = input_batch.tgt
    of_examples = token_models.example_weights(input_batch)
    weights = token_models.token_weights(tgt.weights, of_examples)
    return token_models.token_metrics(
      predictions, tgt.labels, weights
    ), token_models.example_outputs(
      predictions, tgt.labels, weights, of_examples
    )


def dpo_loss(
  model: base_model.BaseModel,
  predictions: NestedMap,
  weights: jax.Array | None = None,
) -> tuple[NestedMap, NestedMap]:
  """Computes the loss of pairs.

  Args:
    model: has `beta`, and gets the summaries.
    predictions: outputs of softmaxes: `y_w_ref`, `y_l_ref`, `y_w_pi`, `y_l_pi`.
    weights: [B], of the pairs; None if all are 1.

  Returns:
    The weighted metrics, and the per-example outputs.
  """
  log_probs = {
    name: -output.per_sequence_xent.astype(jnp.float32)
    for name, output in predictions.items()
  }
  rewards = {
    half: model.beta
    * (
      log_probs[f'{half}_pi'] - jax.lax.stop_gradient(log_probs[f'{half}_ref'])
    )
    for half in _HALVES
  }
  margins = rewards['y_w'] - rewards['y_l']
  row_weights = jnp.ones_like(margins) if weights is None else weights
  total = jnp.sum(row_weights)

  def mean(x: jax.Array) -> jax.Array:
    return jnp.sum(x * row_weights) / jnp.maximum(total, 1e-6)

  loss = mean(-jax.nn.log_sigmoid(margins))
  ranked = mean(jax.nn.sigmoid(margins))
  for name, value in log_probs.items():
    model.add_summary(f'dpo/{name}_log_p', mean(value))
  for half, value in rewards.items():
    model.add_summary(f'dpo/r_hat_{half}', mean(value))
  model.add_summary('dpo/delta_r_hat', mean(margins))
  metrics = NestedMap(
    total_loss=(loss, total),
    loss=(loss, total),
    p_correct_ranking=(ranked, total),
  )
  outputs = NestedMap(scores=margins)
  if weights is not None:
    outputs.eval_sample_weights = weights
  return metrics, outputs


def _field(batch: NestedMap, path: str, name: str) -> jax.Array:
  """Returns the field `path/name` of a batch, flat or nested."""
  full = f'{path}/{name}' if path else name
  if full in batch:
    return batch[full]
  value = batch
  for part in full.split('/'):
    if not isinstance(value, dict) or part not in value:
      raise errors.UserError(
        f'the batch has no {full}' + errors.did_you_mean(full, batch)
      )
    value = value[part]
  return value
