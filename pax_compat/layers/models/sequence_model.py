"""A sequence-to-sequence model.

Shapes: B batch, S source time, T target time.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_input, base_model, errors
from pax_compat.config import Config, instance_field, sub_config_field
from pax_compat.decoder_hparams import DecoderHParams, GreedyDecoderHParams
from pax_compat.decoding import greedy, prefixes, texts
from pax_compat.layers.models import token_models
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.nested_map import NestedMap


class SequenceModel(base_model.BaseModel):
  """Predicts a target sequence from a source sequence.

  A batch has `src` and `tgt`, each with `ids` and `paddings`, [B, S] and
  [B, T], and with `segment_ids` and optionally `segment_pos` if
  `model_tpl.packed_input`; `tgt` also has `labels` and `weights` [B, T].
  Optional are `eval_sample_weights` [B]. The target's `ids` start with the
  begin token, and its `labels` end with the end token.

  Metrics are in nats: `total_loss`, also named `loss`; `avg_xent`, also named
  `log_pplx`; `fraction_of_correct_next_step_preds`; and `num_predictions`. They
  exclude auxiliary losses of layers.

  Attributes:
    model_tpl: the network.
    return_predictions: whether the per-example outputs are all outputs of the
      network [B, ...], instead of `labels` and `scores`.
    decoder_tpl: settings of the decoder. Prefixes are read token by token.
    label_smoothing_prob: the probability that label smoothing distributes
      uniformly over all other tokens; None, the default, keeps that of the
      network's `softmax_tpl`.
  """

  model_tpl: Config = sub_config_field(TransformerEncoderDecoder)
  return_predictions: bool = False
  decoder_tpl: DecoderHParams | Config = instance_field(GreedyDecoderHParams)
  label_smoothing_prob: float | None = None

  def setup(self):
    fields = token_models.with_label_smoothing(
      'SequenceModel.model_tpl', self.model_tpl, self.label_smoothing_prob
    )
    self.create_child('model', self.model_tpl, **fields)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output for the batch."""
    src, tgt = input_batch.src, input_batch.tgt
    segments = {}
    if getattr(self.model, 'packed_input', False):
      segments = {
        f'{side}_{name}': sequence.get(name)
        for side, sequence in (('input', src), ('target', tgt))
        for name in ('segment_ids', 'segment_pos')
      }
    labels = NestedMap(
      class_ids=tgt.labels, class_weights=_weights(input_batch)
    )
    return self.model(
      inputs=src.ids,
      input_paddings=src.paddings,
      targets=tgt.ids,
      target_paddings=tgt.paddings,
      labels=labels,
      **segments,
    )

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    labels, weights = input_batch.tgt.labels, _weights(input_batch)
    metrics = token_models.token_metrics(predictions, labels, weights)
    if self.return_predictions:
      return metrics, token_models.per_example_predictions(
        predictions, len(labels)
      )
    return metrics, token_models.example_outputs(
      predictions, labels, weights, token_models.example_weights(input_batch)
    )

  def encode(self, input_batch: NestedMap) -> NestedMap:
    """Encodes sequences.

    Args:
      input_batch: `ids` [B, S], int, and `paddings` [B, S].

    Returns:
      `embeddings` [B, S, D], the encoder's output.
    """
    return NestedMap(
      embeddings=self.model.encode(input_batch.ids, input_batch.paddings)
    )

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Decodes targets.

    Args:
      input_batch: `src` with `ids` and `paddings` [B, S], not packed; and `tgt`
        with `ids` and `paddings` [B, T], whose first token, or first
        `prefix_lengths` [B] tokens if given, are the prefix of the output.

    Returns:
      The metric `num_decoded`; the batch with the results of `greedy_decode`
      and `original_lengths` [B], the number of target tokens without padding;
      and no clu metrics.

    Raises:
      UserError: the model or its decoder does not support decoding.
    """
    token_models.check_decoder('SequenceModel', self.decoder_tpl)
    if self.decoder_tpl.fprop_for_prefix:
      raise errors.UserError(
        'SequenceModel.decoder_tpl.fprop_for_prefix is True, but prefixes of'
        ' targets are read token by token; expected False'
      )
    src, tgt = input_batch.src, input_batch.tgt
    rows = tgt.ids.shape[0]
    prefix_lengths = input_batch.get(
      'prefix_lengths', jnp.ones([rows], jnp.int32)
    )
    result = greedy.greedy_decode(
      self.model,
      self.decoder_tpl,
      prefixes.create(tgt.ids, prefix_lengths),
      init_states=lambda model, length: model.init_states(
        src.ids, src.paddings, max_length=length
      ),
      extend_step=_extend_step,
    )
    tokens = jnp.sum(tgt.paddings == 0, axis=1, dtype=jnp.int32)
    result = NestedMap({**input_batch, **result, 'original_lengths': tokens})
    metrics = token_models.decode_metrics(input_batch, rows)
    return metrics, result, NestedMap()

  def process_decode_out(
    self, input_obj: base_input.BaseInput, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Detokenizes a decoded batch.

    Args:
      input_obj: the input, which detokenizes by `ids_to_strings` with the key
        'src' or 'tgt'.
      decode_out: the decoded arrays of `decode`.

    Returns:
      The metric `decode_length`; for each example that is not padding, its
      source as a string, and a dict of the strings `source`, `decoded` and
      `target` (the first two also named `prefix` and `decoded_substr`), `ids`
      [T], `logprobs` [T] and `decode_length`; and no clu metrics.
    """
    out = texts.without_padding_rows(decode_out)
    source_lengths = np.sum(out.src.paddings == 0, axis=1, dtype=np.int32)
    columns = {
      name: input_obj.ids_to_strings(ids, lengths, key=key)
      for name, ids, lengths, key in (
        ('source', out.src.ids, source_lengths, 'src'),
        ('decoded', out.output_ids, out.decode_lengths, 'tgt'),
        ('target', out.tgt.ids, out.original_lengths, 'tgt'),
      )
    }
    # For metrics of prefixes and their continuations.
    columns['prefix'] = columns['source']
    columns['decoded_substr'] = columns['decoded']
    pairs = [_pair(out, columns, row) for row in range(len(out.output_ids))]
    return texts.length_metrics('decode_length', out), pairs, NestedMap()


def _weights(input_batch: NestedMap) -> jax.Array:
  return token_models.token_weights(
    input_batch.tgt.weights, token_models.example_weights(input_batch)
  )


def _extend_step(
  model: Any, ids: jax.Array, *, time_step: jax.Array, causal: bool
) -> jax.Array:
  del causal  # Decoders are always causal.
  return model.extend_step(ids, time_step=time_step)


def _pair(
  out: NestedMap, columns: dict[str, Sequence[str]], row: int
) -> tuple[str, dict[str, Any]]:
  strings = {name: column[row] for name, column in columns.items()}
  value = {
    **strings,
    'ids': out.output_ids[row],
    'logprobs': out.logprobs[row],
    'decode_length': out.decode_lengths[row],
  }
  return strings['source'], value
