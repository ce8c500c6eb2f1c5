"""Sampling: several random continuations of each prefix.

Shapes: B rows, N samples of a row, R = B * N, P prefix, T positions, V
vocabulary, C candidates.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat import config as config_lib
from pax_compat.decoder_hparams import SampleDecoderHParams
from pax_compat.decoding import decoder_utils
from pax_compat.decoding.aligned_steps import NO_LOGPROB, AlignedSteps
from pax_compat.decoding.cached_network import CachedNetwork, States
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.decoding.prefixes import Prefix
from pax_compat.decoding.result_streams import ResultStream
from pax_compat.decoding.sample_steps import Rows, SampleInputs, SampleSteps
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers


class BaseSampleTerminationConstraint(config_lib.Configurable):
  """Ends samples that do not conform.

  `__call__` is (enforce_sample_constraints, decode_loop_state) -> done [R]. The
  first argument is that of the batch, all 1 by default; the state has `done`,
  `output_ids` and `step`, the position before the new tokens.
  """

  def __call__(
    self, enforce_sample_constraints: jax.Array, decode_loop_state: NestedMap
  ) -> jax.Array:
    raise NotImplementedError


def sample_decode(
  network: CachedNetwork,
  settings: SampleDecoderHParams,
  prefix: Prefix,
  keys: jax.Array,
  *,
  inputs: SampleInputs | None = None,
  sampler: token_samplers.BaseNextTokenSampler | None = None,
  unconditional: Prefix | None = None,
  causal_prefix: bool = True,
  result_callback: StreamingResultCallback | None = None,
) -> NestedMap:
  """Samples until every sample has ended.

  Args:
    network: computes logits; with guidance, of the rows of `prefix` and
      `unconditional`, in turn.
    settings: of the decoder.
    prefix: the prefixes, left-aligned.
    keys: typed keys [B], the random stream of each example.
    inputs: what examples set themselves.
    sampler: of the next token; None for that of the settings.
    unconditional: the prefixes without the condition, for `cf_guidance_scale`.
    causal_prefix: whether attention within the prefix is causal.
    result_callback: gets results while decoding goes on; None for none.

  Returns:
    `prefix_ids` [B, N, P], see `AlignedSteps.padded_prefix_ids`, and
    `prefix_lengths` [B, N]; `output_ids` [B, N, T], prefixes and samples,
    padded with 0; `decode_lengths` [B, N], with the prefix and the end;
    `original_lengths` [B, N], the lengths of the prefixes;
    `logprobs` [B, N, T] of the tokens, unscaled by the temperature, or 1 for
    tokens that were not sampled; optionally `entropy` [B, N, T], and
    `top_candidate_ids` and `top_candidate_logprobs` [B, N, T, 5] of each
    decoding step. Samples are sorted by log-probability if `sort_samples`.

  Raises:
    UserError: see `SampleInputs.check_effect`.
  """
  inputs = SampleInputs() if inputs is None else inputs
  is_guided = unconditional is not None
  sampler = sampler or settings.next_token_sampler()
  inputs.check_effect(settings, sampler, is_guided=is_guided)
  rows = Rows.of(
    inputs, settings, len(keys), settings.last_decode_step, is_guided=is_guided
  )
  if is_guided:
    prefix = interleaved(prefix, unconditional)
  steps = AlignedSteps(
    network,
    settings,
    prefix,
    repeats=settings.num_samples,
    causal_prefix=causal_prefix,
  )
  sampling = SampleSteps(network.module, sampler, settings, rows)
  stream = None
  if result_callback is not None:
    stream = ResultStream(
      result_callback, steps.first, sampling.split, steps.prefix.lengths
    )
    stream.begin(len(keys), settings.num_samples)
  loop = _Loop(
    network.module,
    settings,
    steps,
    sampling,
    rows,
    _RandomStream.of(keys, inputs, settings),
    stream,
  )
  result = sampling.results(_result(loop.run(), steps, settings))
  if stream is not None:
    stream.end()
  if settings.num_samples > 1 and settings.sort_samples:
    return sort_samples_by_scores(result)
  return result


def sort_samples_by_scores(result: NestedMap) -> NestedMap:
  """Sorts samples, the most likely ones first.

  Args:
    result: arrays [B, N, ...], with `logprobs` [B, N, T].
  """
  scores = jnp.sum(jnp.where(result.logprobs >= 1, 0, result.logprobs), axis=-1)
  _, order = jax.lax.top_k(scores, scores.shape[1])
  return jax.tree.map(
    lambda x: jax.vmap(lambda row, index: row[index])(x, order), result
  )


def interleaved(first: Any, second: Any) -> Any:
  """Returns the rows [2 * B, ...] of two trees of arrays [B, ...] in turn."""
  return jax.tree.map(
    lambda x, y: jnp.stack([x, y], axis=1).reshape(-1, *x.shape[1:]),
    first,
    second,
  )


def _result(
  val: NestedMap, steps: AlignedSteps, settings: SampleDecoderHParams
) -> NestedMap:
  """Returns the last state [R, ...], left-aligned, with the prefixes."""
  result = _with_best_ends(val, steps) if settings.optimize_eos else val
  result = NestedMap(result)
  for name, fill in (('output_ids', 0), ('logprobs', NO_LOGPROB)):
    result[name] = steps.left_aligned(result[name], fill)
  if 'entropy' in result:
    result.entropy = steps.left_aligned(result.entropy, 0)
  is_padded = not settings.vanilla_sample_decode
  result.prefix_ids = steps.repeat(
    steps.padded_prefix_ids() if is_padded else steps.prefix.ids
  )
  result.prefix_lengths = steps.repeat(steps.prefix.lengths)
  result.original_lengths = result.prefix_lengths
  return result


def _with_best_ends(val: NestedMap, steps: AlignedSteps) -> NestedMap:
  """Ends each sample where that is most likely."""
  index = jnp.arange(steps.total)[None]
  # A token was decoded, and not behind the limit of its row.
  is_decoded = (index >= steps.first) & (val.logprobs < NO_LOGPROB)
  best = decoder_utils.best_end(val.logprobs, val.eos_logprobs, is_decoded)
  best = best[:, None]
  val = NestedMap(val)
  for name, end, fill in (
    ('output_ids', val.eos_ids, 0),
    ('logprobs', val.eos_logprobs, NO_LOGPROB),
  ):
    kept = jnp.where(index == best, end, val[name])
    val[name] = jnp.where(index > best, fill, kept)
  offsets = steps.repeat(steps.start.offsets)
  val.decode_lengths = best[:, 0] + 1 - offsets
  del val['eos_ids'], val['eos_logprobs']
  return val


class _RandomStream(flax.struct.PyTreeNode):
  """The random streams of a loop.

  Attributes:
    keys: typed keys [B * N].
    are_given: whether the batch has given them, []; None if it cannot have.
  """

  keys: jax.Array
  are_given: jax.Array | None

  @classmethod
  def of(
    cls, keys: jax.Array, inputs: SampleInputs, settings: SampleDecoderHParams
  ) -> '_RandomStream':
    """Returns the streams of keys [B], or of those of the inputs."""
    are_given = None
    if inputs.gumbel_prng_key is not None:
      keys, are_given = sample_streams.given_keys(inputs.gumbel_prng_key, keys)
    return cls(
      sample_streams.sample_keys(keys, settings.num_samples), are_given
    )

  def positions(self, val: NestedMap) -> jax.Array:
    """Returns what is folded into the keys, [R]."""
    if self.are_given is None:
      return val.segment_pos
    # Pax folds positions of the aligned batch into given keys.
    return jnp.where(self.are_given, val.step, val.segment_pos)


class _Loop:
  """The decoding loop; its state is (NestedMap, states of the network)."""

  def __init__(
    self,
    model: base_layer.BaseLayer,
    settings: SampleDecoderHParams,
    steps: AlignedSteps,
    sampling: SampleSteps,
    rows: Rows,
    random: _RandomStream,
    stream: ResultStream | None,
  ):
    self._model = model
    self._settings = settings
    self._steps = steps
    self._sampling = sampling
    self._rows = rows
    self._random = random
    self._stream = stream

  def run(self) -> NestedMap:
    """Returns the last state."""
    steps = self._steps
    val = self._initial_state()
    if steps.first >= steps.total:
      return val
    logits, states = steps.read_prefix()
    val = self._append(val, logits)
    for number, length in enumerate(steps.lengths):
      if number:
        states = steps.grow(states, steps.lengths[number - 1], length)
      val, states = jax.lax.while_loop(
        functools.partial(steps.goes_on, length),
        functools.partial(self._body, length),
        (val, states),
      )
    return val

  def _body(self, length: int, state: tuple[NestedMap, States]):
    val, states = state
    ids = jax.lax.dynamic_index_in_dim(val.output_ids, val.step, 1, False)
    logits, states = self._steps.read(states, ids, val.step, length)
    return self._append(val, logits), states

  def _initial_state(self) -> NestedMap:
    steps = self._steps
    ids = steps.initial_ids()
    rows, total = ids.shape
    lengths = steps.repeat(steps.start.lengths)
    is_full = lengths >= self._settings.seqlen
    val = NestedMap(
      start_step=jnp.asarray(steps.first - 1, jnp.int32),
      step=jnp.asarray(steps.first - 1, jnp.int32),
      segment_pos=steps.first - 1 - steps.repeat(steps.start.offsets),
      output_ids=ids,
      done=is_full,
      has_eos=jnp.zeros(rows, bool),
      decode_lengths=jnp.where(is_full, lengths, total),
    )
    return self._sampling.initial_state(val)

  def _append(self, val: NestedMap, logits: jax.Array) -> NestedMap:
    """Appends a token, chosen by its `logits` [R, V], to each sample."""
    val = NestedMap(val)
    position = val.step + 1
    sampled = self._sampling.sample(
      self._model, val, logits, self._random.keys, self._random.positions(val)
    )
    prefix_end = self._steps.repeat(
      self._steps.start.offsets + self._steps.start.lengths
    )
    in_prefix = position < prefix_end
    ids = jnp.where(in_prefix, val.output_ids[:, position], sampled.ids)
    ids = jnp.where(val.done, 0, ids).astype(val.output_ids.dtype)
    val.output_ids = val.output_ids.at[:, position].set(ids)
    self._sampling.record(val, sampled, ids, position)
    val.segment_pos = val.segment_pos + 1
    self._end(val, ids, in_prefix, position + 1 - prefix_end)
    val.step = position
    if self._stream is not None:
      self._stream.call_if_due(val)
    return val

  def _end(self, val, ids, in_prefix, decoded):
    """Updates `done`, `has_eos` and `decode_lengths` after new tokens.

    Args:
      val: the state.
      ids: [R], the new tokens.
      in_prefix: [R], whether they are of the prefix.
      decoded: [R], number of tokens after the prefix.
    """
    was_done, constraint = val.done, self._settings.sample_constraint
    has_eos = self._sampling.has_eos(val, ids) & ~in_prefix
    val.has_eos = val.has_eos | has_eos
    val.done = was_done | has_eos
    if constraint is not None:
      enforced = self._rows.enforced
      if enforced is None:
        enforced = jnp.ones_like(ids)
      val.done = constraint(enforced, val)
    lengths = val.segment_pos + 1
    if self._rows.max_steps is not None:
      val.done = val.done | (decoded >= self._rows.max_steps)
    val.done = val.done | (lengths >= self._settings.seqlen)
    val.decode_lengths = jnp.where(
      ~was_done & val.done, lengths, val.decode_lengths
    )
