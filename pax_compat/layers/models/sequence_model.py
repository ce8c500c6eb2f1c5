"""A sequence-to-sequence model.

Shapes: B batch, S source time, T target time.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_input, base_model, errors
from pax_compat.config import Config, instance_field, sub_config_field
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  DecoderHParams,
  GreedyDecoderHParams,
)
from pax_compat.decoding import algorithms, prefixes, sample_decode, texts
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
  `log_pplx`; `fraction_of_correct_next_step_preds`; `num_predictions`; and
  `aux_loss`, the sum of the auxiliary losses of layers, which is part of
  `total_loss` only.

  Attributes:
    model_tpl: the network.
    return_predictions: whether the per-example outputs are all outputs of the
      network [B, ...], instead of `labels` and `scores`.
    decoder_tpl: settings of the decoder.
    label_smoothing_prob: the probability that label smoothing distributes
      uniformly over all other tokens; None, the default, keeps that of the
      network's `softmax_tpl`.
    loss_per_sequence: whether the loss is the mean over target sequences of
      their tokens' sum, and not the mean over tokens. Packed rows count as many
      sequences as their last segment id says.
  """

  model_tpl: Config = sub_config_field(TransformerEncoderDecoder)
  return_predictions: bool = False
  decoder_tpl: DecoderHParams | Config = instance_field(GreedyDecoderHParams)
  label_smoothing_prob: float | None = None
  loss_per_sequence: bool = False

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
    if self.loss_per_sequence:
      metrics.total_loss = self._sequence_loss(predictions, input_batch)
      metrics.loss = metrics.total_loss
    if self.return_predictions:
      return metrics, token_models.per_example_predictions(
        predictions, len(labels)
      )
    return metrics, token_models.example_outputs(
      predictions, labels, weights, token_models.example_weights(input_batch)
    )

  def _sequence_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the mean loss of sequences, and the number of rows."""
    rows = token_models.example_weights(input_batch)
    if rows is None:
      rows = jnp.ones([len(input_batch.tgt.labels)])
    sequences = rows
    if getattr(self.model, 'packed_input', False):
      sequences = rows * jnp.max(input_batch.tgt.segment_ids, axis=1)
    # Other losses of the network than that of its tokens.
    rest = predictions.get('total_loss', predictions.avg_xent)
    rest = rest - predictions.avg_xent
    count = jnp.maximum(jnp.sum(sequences), 1e-6)
    return predictions.total_xent / count + rest, jnp.sum(rows)

  def encode(self, input_batch: NestedMap) -> NestedMap:
    """Encodes sequences; returns `embeddings` [B, S, D], the encoder's output.

    Args:
      input_batch: `ids` [B, S], int, and `paddings` [B, S].
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
      The metric `num_decoded`; the batch with the results of the algorithm and
      `original_lengths`, the number of target tokens without padding; and no
      clu metrics. For the results see `greedy_decode`, `sample_decode` and
      `beam_search`.

    Raises:
      UserError: the model or its decoder does not support decoding.
    """
    return self.decode_with_params(input_batch, self.decoder_tpl)

  def decode_with_params(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> base_model.DecodeOut:
    """Decodes with other settings than `decoder_tpl`; see `decode`."""
    self.check_decoder(decoder_params)
    src, tgt = input_batch.src, input_batch.tgt
    prefix = self._target_prefix(input_batch, decoder_params)
    content = jnp.concatenate([src.ids, prefix.ids], axis=1)
    is_token = jnp.concatenate(
      [src.paddings == 0, prefixes.content(prefix)[1]], axis=1
    )
    read, unconditional = src, None
    if getattr(decoder_params, 'cf_guidance_scale', None) is not None:
      # Rows with and without their source, in turn.
      read = NestedMap(ids=src.ids, paddings=src.paddings)
      read = sample_decode.interleaved(read, self.unconditional_source(read))
      unconditional = prefix
    result = algorithms.decode(
      self.model,
      decoder_params,
      prefix,
      init_states=lambda model, length, repeats: model.init_states(
        jnp.repeat(read.ids, repeats, axis=0),
        jnp.repeat(read.paddings, repeats, axis=0),
        max_length=length,
      ),
      extend_step=token_models.decoder_step,
      weight_metas=lambda model: model.abstract_init_with_metadata(
        src.ids, src.paddings, tgt.ids, tgt.paddings, do_eval=True
      ),
      batch=input_batch,
      content=(content, is_token),
      unconditional=unconditional,
      source_paddings=src.paddings,
    )
    tokens = jnp.sum(tgt.paddings == 0, axis=1, dtype=jnp.int32)
    result.original_lengths = algorithms.original_lengths(result, tokens)
    metrics = token_models.decode_metrics(input_batch, len(prefix.ids))
    return metrics, NestedMap({**input_batch, **result}), NestedMap()

  def unconditional_source(self, src: NestedMap) -> NestedMap:
    """Returns sources without the condition, for `cf_guidance_scale`.

    By default the first token of each source. A subclass may override it.

    Args:
      src: `ids` and `paddings` [B, S].

    Returns:
      The same fields.
    """
    is_first = jnp.arange(src.ids.shape[1])[None] == 0
    return NestedMap(
      ids=jnp.where(is_first, src.ids, 0),
      paddings=jnp.where(is_first, src.paddings, 1).astype(src.paddings.dtype),
    )

  def _target_prefix(
    self, input_batch: NestedMap, settings: DecoderHParams
  ) -> prefixes.Prefix:
    """Returns the prefixes of the targets."""
    ids = input_batch.tgt.ids
    lengths = input_batch.get('prefix_lengths')
    is_beam = isinstance(settings, BeamSearchHParams)
    if lengths is None or (is_beam and not settings.fprop_for_prefix):
      lengths = jnp.ones([len(ids)], jnp.int32)
      if is_beam or settings.fprop_for_prefix:
        # The begin token alone, not one that is far behind padding.
        ids = ids[:, :1]
    return prefixes.create(ids, lengths)

  def check_decoder(self, settings: DecoderHParams | None = None):
    """Raises a UserError unless this model can decode.

    Args:
      settings: of the decoder; None for `decoder_tpl`.
    """
    settings = self.decoder_tpl if settings is None else settings
    where = 'SequenceModel.decoder_tpl'
    if getattr(settings, 'use_extra_input_kwargs', False):
      raise errors.UserError(
        f'{where}.use_extra_input_kwargs is True; expected False: the network'
        ' of a SequenceModel takes no other inputs'
      )
    softmax = getattr(self.model, 'softmax', None)
    algorithms.check_settings(
      where, settings, getattr(softmax, 'num_classes', None)
    )

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
      [T], `logprobs` [T] and `decode_length`; and no clu metrics. Of several
      samples or hypotheses these are the first, and the dict has all their
      strings as the list `sampled`, and of a beam search their `scores`.
    """
    out, sampled = texts.first_samples(
      texts.without_padding_rows(decode_out),
      functools.partial(input_obj.ids_to_strings, key='tgt'),
    )
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
    pairs = [
      _pair(out, columns, row, fields) for row, fields in enumerate(sampled)
    ]
    return texts.length_metrics('decode_length', out), pairs, NestedMap()


def _weights(input_batch: NestedMap) -> jax.Array:
  return token_models.token_weights(
    input_batch.tgt.weights, token_models.example_weights(input_batch)
  )


def _pair(
  out: NestedMap,
  columns: dict[str, Sequence[str]],
  row: int,
  sampled: dict[str, Any],
) -> tuple[str, dict[str, Any]]:
  strings = {name: column[row] for name, column in columns.items()}
  value = {
    **strings,
    'ids': out.output_ids[row],
    'logprobs': out.logprobs[row],
    'decode_length': out.decode_lengths[row],
    **sampled,
  }
  return strings['source'], value
