"""A model that predicts the next token.

Shapes: B batch, P prefix, T time.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_input, base_model, errors
from pax_compat import config as config_lib
from pax_compat.config import Config, instance_field, sub_config_field
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  DecoderHParams,
  GreedyDecoderHParams,
)
from pax_compat.decoding import (
  algorithms,
  continuous_batching,
  prefixes,
  sample_steps,
  speculative,
  texts,
)
from pax_compat.decoding.cached_network import CachedNetwork
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.decoding.pax_networks import PaxNetwork
from pax_compat.layers.attentions.attention_masks import AttentionMask
from pax_compat.layers.embeddings import token_counter
from pax_compat.layers.models import token_models
from pax_compat.layers.template_fields import create_agreed
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams


class LanguageModel(base_model.BaseModel):
  """Predicts the next token.

  A batch has `ids` and `labels` [B, T] int, `paddings` and `weights` [B, T]. A
  packed row of two examples, of 3 tokens and of 1, where 0 begins a sequence
  and 1 ends it:

      ids               0  5  6  7  0  8  0
      labels            5  6  7  1  8  1  0
      weights           1  1  1  1  1  1  0
      paddings          0  0  0  0  0  0  1
      segment_ids       1  1  1  1  2  2  0    if lm_tpl.packed_input
      segment_pos       0  1  2  3  0  1  0    likewise, optional
      inputs_indicator  1  1  0  0  1  0  0    if the model type is 'prefix'

  The model adds no begin or end tokens. `inputs_indicator` is 1 for tokens of
  the prefix. Optional are `eval_sample_weights` [B], `word_count` [B] int, and
  `num_sentences` [B] int, 1 by default.

  Metrics are in nats: `total_loss`, also named `loss`; `avg_xent`, the mean
  over tokens, also named `log_pplx`; `fraction_of_correct_next_step_preds`;
  `num_predictions`; `aux_loss`, the sum of the auxiliary losses of layers,
  which is part of `total_loss` only; and with `word_count` `log_pplx_per_word`,
  `num_words` and `num_sentences`.

  Attributes:
    lm_tpl: the network.
    sum_loss: whether the loss is the sum over the batch's tokens instead of
      their mean.
    return_predictions: whether the per-example outputs are all outputs of the
      network [B, ...], instead of `labels` and `scores`.
    decoder_tpl: settings of the decoder.
    model_type: a `LanguageModelType` or its name; None, the default, keeps that
      of `lm_tpl`.
    count_tokens: whether the tokens of all training batches are counted; see
      `TokenCounter`.
    apply_eval_sample_weights: whether `eval_sample_weights` of a batch are
      applied.
    report_strict_acc: whether there is a metric `acc_strict`, the fraction of
      examples whose tokens are all predicted.
  """

  lm_tpl: Config = sub_config_field(TransformerLm)
  sum_loss: bool = False
  return_predictions: bool = False
  decoder_tpl: DecoderHParams | Config = instance_field(GreedyDecoderHParams)
  model_type: str | None = None
  count_tokens: bool = False
  apply_eval_sample_weights: bool = True
  report_strict_acc: bool = False

  def setup(self):
    if self.count_tokens:
      self.create_child('token_counter', token_counter.TokenCounter.config())
    create_agreed(self, 'lm', 'lm_tpl', model_type=self.model_type)

  def _has_prefix(self) -> bool:
    """Whether the model type is 'prefix'."""
    kind = getattr(self.lm, 'model_type', LanguageModelType.CAUSAL)
    return kind == LanguageModelType.PREFIX

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output for the batch."""
    if self.count_tokens:
      self.token_counter(input_batch.paddings)
    labels = NestedMap(
      class_ids=input_batch.labels, class_weights=self._weights(input_batch)
    )
    return self.lm(
      input_batch.ids,
      input_batch.paddings,
      labels,
      **self._segments(input_batch),
      **self._visible_prefix(input_batch),
    )

  def _weights(self, input_batch: NestedMap) -> jax.Array:
    return token_models.token_weights(
      input_batch.weights, self._example_weights(input_batch)
    )

  def _example_weights(self, input_batch: NestedMap) -> jax.Array | None:
    if not self.apply_eval_sample_weights:
      return None
    return token_models.example_weights(input_batch)

  def _segments(self, input_batch: NestedMap) -> dict[str, Any]:
    """Returns what a network of packed input takes in addition."""
    if not getattr(self.lm, 'packed_input', False):
      return {}
    segments = token_models.segments('LanguageModel', input_batch)
    if 'segment_mask' in input_batch:
      segments['segment_mask'] = input_batch.segment_mask
    return segments

  def _visible_prefix(self, input_batch: NestedMap) -> dict[str, jax.Array]:
    """Returns the mask of the prefix for a prefix model."""
    if not self._has_prefix():
      return {}
    if 'inputs_indicator' not in input_batch:
      raise errors.UserError(
        "LanguageModel.model_type is 'prefix', but the batch has no"
        ' inputs_indicator, 1 where a token belongs to the prefix'
      )
    return {'causal_attention_mask': 1 - input_batch.inputs_indicator}

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    labels = input_batch.labels
    weights = self._weights(input_batch)
    metrics = token_models.token_metrics(predictions, labels, weights)
    if self.sum_loss:
      mean, total = metrics.total_loss
      aux_loss = predictions.get('aux_loss', 0.0)  # Not of tokens.
      # The softmax's sum is more precise than mean times weight.
      rest = (mean - aux_loss - predictions.avg_xent) * total
      metrics.total_loss = (predictions.total_xent + rest + aux_loss, total)
      metrics.loss = metrics.total_loss
    if self.report_strict_acc:
      metrics.acc_strict = token_models.strict_accuracy(
        predictions, labels, weights
      )
    if 'word_count' in input_batch:
      metrics.update(_per_word(predictions, input_batch, weights))
    if self.return_predictions:
      return metrics, token_models.per_example_predictions(
        predictions, len(labels)
      )
    return metrics, token_models.example_outputs(
      predictions, labels, weights, self._example_weights(input_batch)
    )

  def decode(
    self,
    input_batch: NestedMap,
    result_callback: StreamingResultCallback | None = None,
  ) -> base_model.DecodeOut:
    """Continues prefixes.

    Args:
      input_batch: `ids` [B, P] int and `paddings` [B, P]. The prefixes are the
        first `prefix_lengths` [B] tokens; by default the sum of
        `inputs_indicator` [B, P] for a prefix model, else all tokens.
      result_callback: gets results while sampling goes on; None for none.

    Sampling also reads what examples set themselves; see `SampleInputs`.

    Returns:
      The metric `num_decoded`; the batch with the results of the algorithm and
      `original_lengths`, the number of tokens without padding; and no clu
      metrics. For the results see `greedy_decode`, `sample_decode` and
      `beam_search`.

    Raises:
      UserError: the model or its decoder does not support decoding.
    """
    return self.decode_with_params(
      self.decoder_tpl, input_batch, result_callback
    )

  def decode_with_params(
    self,
    decoder_params: DecoderHParams,
    input_batch: NestedMap,
    result_callback: StreamingResultCallback | None = None,
  ) -> base_model.DecodeOut:
    """Decodes with other settings than `decoder_tpl`; see `decode`."""
    self.check_decoder(decoder_params)
    decoder_params = self._with_length(decoder_params, input_batch)
    tokens = jnp.sum(input_batch.paddings == 0, axis=1, dtype=jnp.int32)
    lengths = self._prefix_lengths(input_batch, tokens)
    prefix = prefixes.create(input_batch.ids, lengths)
    unconditional = None
    if getattr(decoder_params, 'cf_guidance_scale', None) is not None:
      unconditional = self.unconditional_prefix(prefix)
    rows = len(prefix.ids) * (1 if unconditional is None else 2)
    result = algorithms.decode(
      self.lm,
      decoder_params,
      prefix,
      **self._decode_functions(rows, decoder_params, input_batch),
      weight_metas=lambda lm: lm.abstract_init_with_metadata(
        input_batch.ids, input_batch.paddings, do_eval=True
      ),
      batch=input_batch,
      content=prefixes.content(prefix),
      causal_prefix=not self._has_prefix(),
      unconditional=unconditional,
      result_callback=result_callback,
    )
    result.original_lengths = algorithms.original_lengths(result, tokens)
    # 0 of a padding row, although its first token is kept.
    result.prefix_lengths = jnp.minimum(
      result.prefix_lengths, algorithms.original_lengths(result, lengths)
    )
    metrics = token_models.decode_metrics(input_batch, len(prefix.ids))
    return metrics, NestedMap({**input_batch, **result}), NestedMap()

  def _decode_functions(
    self, rows: int, settings: DecoderHParams, input_batch: NestedMap
  ) -> dict[str, Any]:
    """Returns the arguments of `algorithms.decode` for a batch of rows."""
    if not hasattr(self.lm, 'init_states'):
      extra = {}
      if settings.use_extra_input_kwargs:
        given = input_batch.get('extra_input_kwargs', {})
        # Rows that are guided have a row without condition behind each.
        times = rows // len(input_batch.ids)
        extra = jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), given)
      prefix = input_batch.ids.shape[1]
      return {'cached': PaxNetwork(self.lm, rows, extra, prefix=prefix)}
    return self._state_functions(rows)

  def _state_functions(self, rows: int) -> dict[str, Any]:
    """Returns the functions of a `CachedNetwork` for a batch of rows."""
    return {
      'init_states': lambda lm, length, repeats: lm.init_states(
        rows * repeats, length
      ),
      'extend_step': _extend_step,
    }

  def cached_network(self, rows: int) -> CachedNetwork:
    """Returns the network as functions of its decode states.

    Args:
      rows: number of rows of a batch.
    """
    if not hasattr(self.lm, 'init_states'):
      raise errors.UserError(
        f'LanguageModel.lm: {type(self.lm).__name__} has no init_states; to'
        ' decode with a draft model, or in slots, expected a network that'
        ' allocates its decode states'
      )
    return CachedNetwork(self.lm, **self._state_functions(rows))

  def decode_with_draft(
    self,
    draft: 'LanguageModel',
    decoder_params: DecoderHParams,
    input_batch: NestedMap,
    *,
    draft_steps: int,
    result_callback: StreamingResultCallback | None = None,
  ) -> NestedMap:
    """Continues prefixes with the help of a smaller model.

    Args:
      draft: a bound model of the same vocabulary, which proposes tokens.
      decoder_params: settings of greedy decoding or sampling.
      input_batch: as for `decode`, without settings of single examples.
      draft_steps: number of tokens that are proposed in a step.
      result_callback: gets the tokens of each step; None for none.

    Returns:
      The results of `decode` with these settings, in the same distribution, and
      `target_steps`; see `speculative_decode`.

    Raises:
      UserError: see `speculative.check`, and `decode`.
    """
    self.check_decoder(decoder_params)
    speculative.check(
      'LanguageModel.decoder_tpl',
      decoder_params,
      draft_steps,
      vocab_sizes=tuple(
        getattr(model.lm, 'vocab_size', None) for model in (self, draft)
      ),
    )
    sample_steps.check_no_inputs(input_batch, 'a draft model')
    tokens = jnp.sum(input_batch.paddings == 0, axis=1, dtype=jnp.int32)
    prefix = prefixes.create(
      input_batch.ids, self._prefix_lengths(input_batch, tokens)
    )
    settings = speculative.as_sampling(
      self._with_length(decoder_params, input_batch)
    )
    rows = len(prefix.ids)
    result = speculative.speculative_decode(
      self.cached_network(rows),
      draft.cached_network(rows),
      settings,
      prefix,
      sample_streams.content_keys(
        algorithms.random_key(self.lm), *prefixes.content(prefix)
      ),
      draft_steps=draft_steps,
      causal_prefix=(not self._has_prefix(), not draft._has_prefix()),
      result_callback=result_callback,
    )
    if settings.vanilla_sample_decode:
      result = jax.tree.map(lambda x: x[:, 0], result)
    return result

  def slot_decoder(
    self, decoder_params: DecoderHParams, *, slots: int, positions: int
  ) -> continuous_batching.SlotDecoder:
    """Returns functions that continue prefixes by continuous batching.

    Args:
      decoder_params: settings of greedy decoding or sampling.
      slots: number of sequences that are decoded at once.
      positions: maximum length of a sequence, prefix included.

    Raises:
      UserError: a random key is missing; or see `continuous_batching.check`.
    """
    self.check_decoder(decoder_params)
    continuous_batching.check('LanguageModel.decoder_tpl', decoder_params)
    single = self.cached_network(1)
    return continuous_batching.SlotDecoder(
      single,
      # Before the next network takes one: it is the key of `decode`.
      algorithms.random_key(self.lm),
      self.cached_network(slots),
      speculative.as_sampling(decoder_params),
      slots=slots,
      positions=positions,
      causal_prefix=not self._has_prefix(),
    )

  def unconditional_prefix(self, prefix: prefixes.Prefix) -> prefixes.Prefix:
    """Returns prefixes without the condition, for `cf_guidance_scale`.

    By default the first token of each prefix. A subclass may override it.
    """
    return algorithms.first_tokens(prefix)

  def check_decoder(self, settings: DecoderHParams | None = None):
    """Raises a UserError unless this model can decode.

    Args:
      settings: of the decoder; None for `decoder_tpl`.
    """
    settings = self.decoder_tpl if settings is None else settings
    where = 'LanguageModel.decoder_tpl'
    vocab_size = getattr(self.lm, 'vocab_size', None)
    algorithms.check_settings(where, settings, vocab_size)
    for reason, is_needed in (
      ("LanguageModel.model_type is 'prefix'", self._has_prefix()),
      ('beam search', isinstance(settings, BeamSearchHParams)),
    ):
      if is_needed and not settings.fprop_for_prefix:
        raise errors.UserError(
          f'{where}.fprop_for_prefix is False; expected True: {reason}, which'
          ' reads the prefix in one step'
        )
    if settings.use_extra_input_kwargs and hasattr(self.lm, 'init_states'):
      raise errors.UserError(
        f'{where}.use_extra_input_kwargs is True; expected False:'
        f' {type(self.lm).__name__} reads a prefix by extend_step, which takes'
        ' no other inputs'
      )
    most = max_positions(self.lm_tpl)
    reads_seqlen = not settings.fprop_for_prefix
    if most is not None and reads_seqlen and settings.seqlen > most:
      raise errors.UserError(
        f'{where}.seqlen is {settings.seqlen}; expected at most {most},'
        ' max_seq_length of LanguageModel.lm_tpl.position_emb_tpl'
      )

  def _with_length(
    self, settings: DecoderHParams, input_batch: NestedMap
  ) -> DecoderHParams:
    """Returns settings whose `seqlen` is the maximum length of an output."""
    if not settings.fprop_for_prefix:
      return settings
    settings = settings.clone()
    most = max_positions(self.lm_tpl)
    length = input_batch.ids.shape[1] + settings.last_decode_step
    settings.seqlen = length if most is None else min(length, most)
    return settings

  def _prefix_lengths(
    self, input_batch: NestedMap, tokens: jax.Array
  ) -> jax.Array:
    if 'prefix_lengths' in input_batch:
      return input_batch.prefix_lengths
    if self._has_prefix() and 'inputs_indicator' in input_batch:
      return jnp.sum(input_batch.inputs_indicator.astype(jnp.int32), axis=1)
    return tokens

  def process_decode_out(
    self, input_obj: base_input.BaseInput, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Detokenizes a decoded batch.

    Args:
      input_obj: the input, which detokenizes by `ids_to_strings`.
      decode_out: the decoded arrays of `decode`.

    Returns:
      The metric `decoded_length`; for each example that is not padding, its
      prefix as a string, and a dict of the strings `prefix`, `decoded` (prefix
      included), `decoded_substr` (the continuation) and `original`, `ids` [T],
      `decoded_ids` (of the continuation), `logprobs` [T], `prefix_length` and
      `decode_length`; and no clu metrics. Of several samples or hypotheses
      these are the first, and the dict has all their strings as the list
      `sampled`, and of a beam search their `scores`.
    """
    out, sampled = texts.first_samples(
      texts.without_padding_rows(decode_out), input_obj.ids_to_strings
    )
    columns = {
      name: input_obj.ids_to_strings(ids, lengths)
      for name, ids, lengths in (
        ('prefix', out.prefix_ids, out.prefix_lengths),
        ('decoded', out.output_ids, out.decode_lengths),
        ('original', out.ids, out.original_lengths),
      )
    }
    continuations = texts.without_prefixes(out.output_ids, out.prefix_lengths)
    columns['decoded_substr'] = input_obj.ids_to_strings(
      continuations, out.decode_lengths - out.prefix_lengths
    )
    pairs = [
      self._pair(out, columns, row, fields)
      for row, fields in enumerate(sampled)
    ]
    return texts.length_metrics('decoded_length', out), pairs, NestedMap()

  def _pair(
    self,
    out: NestedMap,
    columns: dict[str, Sequence[str]],
    row: int,
    sampled: dict[str, Any],
  ) -> tuple[str, dict[str, Any]]:
    start, end = out.prefix_lengths[row], out.decode_lengths[row]
    strings = {name: column[row] for name, column in columns.items()}
    value = {
      **strings,
      'ids': out.output_ids[row],
      'decoded_ids': out.output_ids[row][start:end],
      'logprobs': out.logprobs[row],
      'prefix_length': start,
      'decode_length': end,
      **sampled,
    }
    return strings['prefix'], value


class LanguageModelContinuousBatching(LanguageModel):
  """A language model, by praxis's name for continuous batching.

  Every `LanguageModel` decodes in slots; see `slot_decoder`, and `server` of a
  trained model, whose number of slots is `decoder_tpl.num_cache_slots`.
  praxis's own methods for it, which change a state of praxis's layout, raise a
  UserError.
  """

  def sample_init_decode_state(self, *args, **kwargs):
    raise _no_praxis_slots('sample_init_decode_state')

  def sample_prefill(self, *args, **kwargs):
    raise _no_praxis_slots('sample_prefill')

  def sample_insert(self, *args, **kwargs):
    raise _no_praxis_slots('sample_insert')

  def sample_generate(self, *args, **kwargs):
    raise _no_praxis_slots('sample_generate')


def _no_praxis_slots(name: str) -> errors.UserError:
  return errors.UserError(
    f'LanguageModelContinuousBatching.{name} is not supported: its state has'
    " praxis's layout; expected slot_decoder, whose `empty`, `insert` and"
    ' `decode` do the same, or `server` of a trained model'
  )


def max_positions(lm_tpl: Config) -> int | None:
  """Returns the number of positions that a network supports; None for any."""
  embedding = config_lib.field_values(lm_tpl).get('position_emb_tpl')
  if not isinstance(embedding, Config):
    return None
  return config_lib.field_values(embedding).get('max_seq_length')


def _per_word(
  predictions: NestedMap, input_batch: NestedMap, weights: jax.Array
) -> NestedMap:
  # Padding rows have weight 0, so their words and sentences do not count.
  row_weights = jnp.max(weights, axis=1)
  sentences = input_batch.get('num_sentences', 1)
  # The end of a sentence counts as a word.
  words = jnp.sum((input_batch.word_count + sentences) * row_weights)
  return NestedMap(
    log_pplx_per_word=(predictions.total_xent / jnp.maximum(words, 1.0), words),
    num_words=(words, 1.0),
    num_sentences=(jnp.sum(sentences * row_weights), 1.0),
  )


def _extend_step(
  lm: Any,
  ids: jax.Array,
  *,
  causal: bool,
  time_step: jax.Array,
  segment_pos: jax.Array | None = None,
  mask: jax.Array | None = None,
  last_only: bool = False,
) -> jax.Array:
  """Returns logits [B, L, V] of a step; see `cached_network.ExtendStepFn`."""
  options: dict[str, Any] = {}
  if not causal:
    options['causal_attention_mask'] = jnp.zeros(ids.shape)
  # Networks of users may lack it; theirs predict all tokens.
  if last_only and 'last_only' in inspect.signature(lm.extend_step).parameters:
    options['last_only'] = True
  atten_mask = AttentionMask(mask, causal=causal)
  return lm.extend_step(
    ids,
    segment_pos=segment_pos,
    atten_mask=atten_mask,
    time_step=time_step,
    **options,
  ).logits
