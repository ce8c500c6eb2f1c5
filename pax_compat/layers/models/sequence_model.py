"""The model that maps one sequence of tokens to another.

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
  [B, T], and with `segment_ids` and perhaps `segment_pos` where
  `model_tpl.packed_input` is on; `tgt` has `labels` and `weights` [B, T], too.
  `eval_sample_weights` [B] of the batch count, where it has them. The target's
  `ids` begin with the token that begins a sequence, and its `labels` end with
  the one that ends it.

  Metrics are in nats: `total_loss`, also called `loss`; `avg_xent`, also called
  `log_pplx`; `fraction_of_correct_next_step_preds`; and `num_predictions`.
  Auxiliary losses of layers are not in them.

  Attributes:
    model_tpl: the network.
    return_predictions: whether the outputs for each example are all that the
      network says of it, instead of `labels` and `scores`.
    decoder_tpl: how it is decoded. Prefixes are read token by token.
    label_smoothing_prob: the probability that the target distribution takes
      from the right token and gives to the others in equal parts; None, the
      default, leaves it to the network's `softmax_tpl`.
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
        f'{side}_{name}': part.get(name)
        for side, part in (('input', src), ('target', tgt))
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
    """Returns the weighted metrics, and what is said of each example."""
    labels, weights = input_batch.tgt.labels, _weights(input_batch)
    metrics = token_models.token_metrics(predictions, labels, weights)
    if self.return_predictions:
      return metrics, token_models.predictions_of_examples(
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
      `embeddings` [B, S, D], what the decoder would see.
    """
    return NestedMap(
      embeddings=self.model.encode(input_batch.ids, input_batch.paddings)
    )

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Decodes targets.

    Args:
      input_batch: `src` with `ids` and `paddings` [B, S], not packed; and `tgt`
        with `ids` and `paddings` [B, T], of which the first token of each row,
        or where the batch has them the first `prefix_lengths` [B], begin the
        output.

    Returns:
      The metric `num_decoded`; the batch, with what `greedy_decode` returns and
      `original_lengths` [B], the number of the target's tokens that are no
      padding; and no metrics of clu.

    Raises:
      UserError: the model or its decoder cannot decode.
    """
    token_models.check_decoder('SequenceModel', self.decoder_tpl)
    if self.decoder_tpl.fprop_for_prefix:
      raise errors.UserError(
        'SequenceModel.decoder_tpl.fprop_for_prefix is on, but prefixes of'
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
    """Makes texts of tokens.

    Args:
      input_obj: the input, whose `ids_to_strings` makes them, with the key
        'src' or 'tgt'.
      decode_out: the decoded arrays of `decode`.

    Returns:
      The metric `decode_length`; a pair for each example that counts, of its
      source as text and a dict of `source`, `decoded` and `target` as texts
      (the first two are also called `prefix` and `decoded_substr`), `ids` [T],
      `logprobs` [T] and `decode_length`; and no metrics of clu.
    """
    out = texts.of_counted_rows(decode_out)
    source_lengths = np.sum(out.src.paddings == 0, axis=1, dtype=np.int32)
    made = {
      name: input_obj.ids_to_strings(ids, lengths, key=key)
      for name, ids, lengths, key in (
        ('source', out.src.ids, source_lengths, 'src'),
        ('decoded', out.output_ids, out.decode_lengths, 'tgt'),
        ('target', out.tgt.ids, out.original_lengths, 'tgt'),
      )
    }
    # What metrics over prefixes and their continuations look for.
    made['prefix'] = made['source']
    made['decoded_substr'] = made['decoded']
    pairs = [_pair(out, made, row) for row in range(len(out.output_ids))]
    return texts.length_metrics('decode_length', out), pairs, NestedMap()


def _weights(input_batch: NestedMap) -> jax.Array:
  return token_models.token_weights(
    input_batch.tgt.weights, token_models.example_weights(input_batch)
  )


def _extend_step(
  model: Any, ids: jax.Array, *, time_step: jax.Array, causal: bool
) -> jax.Array:
  del causal  # Targets always are.
  return model.extend_step(ids, time_step=time_step)


def _pair(
  out: NestedMap, made: dict[str, Sequence[str]], row: int
) -> tuple[str, dict[str, Any]]:
  strings = {name: column[row] for name, column in made.items()}
  value = {
    **strings,
    'ids': out.output_ids[row],
    'logprobs': out.logprobs[row],
    'decode_length': out.decode_lengths[row],
  }
  return strings['source'], value
