"""Sampling: several random continuations of each prefix.

Shapes: B rows, N samples of a row, R = B * N, P prefix, T positions, V
vocabulary, C candidates.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.decoder_hparams import SampleDecoderHParams
from pax_compat.decoding import decoder_utils
from pax_compat.decoding.aligned_steps import NO_LOGPROB, AlignedSteps
from pax_compat.decoding.cached_network import CachedNetwork, States
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.decoding.prefixes import Prefix
from pax_compat.decoding.result_streams import ResultStream
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers

MAX_NUM_PER_TOKEN_LOGPROBS = 5


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


class SampleInputs(flax.struct.PyTreeNode):
  """What each example may set, as fields of the batch of the same names.

  Attributes:
    temperature: [B] or [B, N].
    per_example_max_decode_steps: [B], at most `max_decode_steps`.
    per_example_top_p: [B].
    per_example_top_k: [B], at most `k`.
    eos_id: [B, E], a stop sequence padded with 0 at the left, which 0 is any
      token; or several, [B, S, E]. It replaces the `eos_id` of the settings.
    gumbel_prng_key: [B] or [B, 2], key data; all `DUMMY_PRNG_KEY` for none.
    cf_guidance_scale: [B] or [B, N].
    enforce_sample_constraints: [B], passed to the constraint.
    num_per_token_logprobs: [B], number of most likely tokens that the result
      has, at most 5.
    return_entropy_score: whether the result has the entropy at each token.
  """

  temperature: jax.Array | None = None
  per_example_max_decode_steps: jax.Array | None = None
  per_example_top_p: jax.Array | None = None
  per_example_top_k: jax.Array | None = None
  eos_id: jax.Array | None = None
  gumbel_prng_key: jax.Array | None = None
  cf_guidance_scale: jax.Array | None = None
  enforce_sample_constraints: jax.Array | None = None
  num_per_token_logprobs: jax.Array | None = None
  return_entropy_score: bool = flax.struct.field(
    pytree_node=False, default=False
  )

  @classmethod
  def of(cls, batch: NestedMap) -> 'SampleInputs':
    """Returns the fields of a batch."""
    names = set(cls.__dataclass_fields__) - {'return_entropy_score'}
    return cls(
      **{name: batch.get(name) for name in names},
      return_entropy_score='return_entropy_score' in batch,
    )


def check_no_inputs(batch: NestedMap, what: str):
  """Raises a UserError if examples set something themselves.

  Args:
    batch: the batch; see `SampleInputs`.
    what: names what does not support it.
  """
  for name in SampleInputs.__dataclass_fields__:
    if batch.get(name) is not None:
      raise errors.UserError(
        f'the batch has the field {name}, which is not supported with {what}'
      )


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
  """
  inputs = SampleInputs() if inputs is None else inputs
  is_guided = unconditional is not None
  if is_guided:
    prefix = interleaved(prefix, unconditional)
  steps = AlignedSteps(
    network,
    settings,
    prefix,
    repeats=settings.num_samples,
    causal_prefix=causal_prefix,
  )
  sampler = sampler or settings.next_token_sampler()
  groups = settings.num_samples * (2 if is_guided else 1)

  def split(x):
    return split_batch_dim(x, groups)[:, : settings.num_samples]

  stream = None
  if result_callback is not None:
    stream = ResultStream(
      result_callback, steps.first, split, steps.prefix.lengths
    )
    stream.begin(len(keys), settings.num_samples)
  loop = _Loop(
    network, settings, steps, inputs, keys, sampler, is_guided, stream
  )
  result = _result(loop.run(), steps, settings)
  if stream is not None:
    stream.end()
  result = jax.tree.map(split, sampler.post_process_decode_loop_state(result))
  if settings.num_samples > 1 and settings.sort_samples:
    return sort_samples_by_scores(result)
  return result


def split_batch_dim(x: jax.Array, num_samples: int) -> jax.Array:
  """Returns `x` [R, ...] as [B, N, ...]."""
  return x.reshape(-1, num_samples, *x.shape[1:])


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
  """Returns the results [R, ...] of the last state."""
  if settings.optimize_eos:
    val = _with_best_ends(val, steps, settings)
  working = ('start_step', 'step', 'done', 'has_eos', 'segment_pos')
  result = NestedMap({k: v for k, v in val.items() if k not in working})
  for name, fill in (('output_ids', 0), ('logprobs', NO_LOGPROB)):
    result[name] = steps.left_aligned(val[name], fill)
  if 'entropy' in val:
    result.entropy = steps.left_aligned(val.entropy, 0)
  is_padded = not settings.vanilla_sample_decode
  result.prefix_ids = steps.repeat(
    steps.padded_prefix_ids() if is_padded else steps.prefix.ids
  )
  result.prefix_lengths = steps.repeat(steps.prefix.lengths)
  result.original_lengths = result.prefix_lengths
  return result


def _with_best_ends(
  val: NestedMap, steps: AlignedSteps, settings: SampleDecoderHParams
) -> NestedMap:
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


class _Loop:
  """The decoding loop; its state is (NestedMap, states of the network)."""

  def __init__(
    self,
    network: CachedNetwork,
    settings: SampleDecoderHParams,
    steps: AlignedSteps,
    inputs: SampleInputs,
    keys: jax.Array,
    sampler: token_samplers.BaseNextTokenSampler,
    is_guided: bool,
    stream: ResultStream | None,
  ):
    self._model = network.module
    self._settings = settings
    self._steps = steps
    self._sampler = sampler
    self._num = settings.num_samples
    self._is_guided = is_guided
    self._stream = stream
    self._inputs = inputs
    self._keys_are_given = False
    if inputs.gumbel_prng_key is not None:
      keys, self._keys_are_given = sample_streams.given_keys(
        inputs.gumbel_prng_key, keys
      )
    self._keys = sample_streams.sample_keys(keys, self._num)
    self._rows = len(keys) * self._num
    temperature = self._of_samples('temperature')
    if temperature is None:
      self._temperature = settings.temperature
    else:
      self._temperature = temperature[:, None]
    self._top_p = self._of_samples('per_example_top_p')
    if self._top_p is not None:
      self._top_p = self._top_p[:, None]
    self._top_k = self._of_samples('per_example_top_k')
    self._stop = self._of_samples('eos_id', both=True)
    self._scale = self._guidance_scale()
    self._num_candidates = self._of_samples('num_per_token_logprobs', both=True)
    self._max_steps = self._of_samples(
      'per_example_max_decode_steps', both=True
    )
    last = settings.last_decode_step
    if last is not None:
      given = last if self._max_steps is None else self._max_steps
      self._max_steps = jnp.minimum(given, last)

  def _of_samples(self, name: str, *, both: bool = False) -> jax.Array | None:
    """Returns a field of the inputs for each sample, [R, ...], or None.

    Args:
      name: the field.
      both: whether unconditional rows have it too.
    """
    value = getattr(self._inputs, name)
    if value is None:
      return None
    rows = self._rows // self._num
    value = jnp.asarray(value)
    shape = value.shape
    if shape == (rows, self._num) and name in (
      'temperature',
      'cf_guidance_scale',
    ):
      value = value.ravel()
    elif shape[:1] == (rows,) and (len(shape) == 1 or name == 'eos_id'):
      value = jnp.repeat(value, self._num, axis=0)
    else:
      raise errors.UserError(
        f'the batch has {name} {shape}; expected a value for each of the {rows}'
        ' examples'
      )
    return self._both(value) if both and self._is_guided else value

  def _both(self, x: jax.Array) -> jax.Array:
    """Repeats samples [R, ...] for their unconditional rows."""
    grouped = split_batch_dim(x, self._num)
    return jnp.concatenate([grouped, grouped], axis=1).reshape(-1, *x.shape[1:])

  def _guidance_scale(self) -> jax.Array | None:
    """Returns the scale [B, N, 1]."""
    scale = self._of_samples('cf_guidance_scale')
    if scale is None:
      scale = self._settings.cf_guidance_scale
      if scale is None:
        return None
      scale = jnp.asarray(scale, jnp.float32)
    else:
      scale = split_batch_dim(scale, self._num)
    return jnp.broadcast_to(scale, (self._rows // self._num, self._num))[
      ..., None
    ]

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
      logprobs=jnp.full((rows, total), NO_LOGPROB, jnp.float32),
    )
    if self._settings.optimize_eos:
      val.eos_ids = jnp.zeros_like(ids)
      val.eos_logprobs = jnp.full_like(val.logprobs, NO_LOGPROB)
    if self._inputs.return_entropy_score:
      val.entropy = jnp.zeros_like(val.logprobs)
    if self._num_candidates is not None:
      shape = (rows, total, MAX_NUM_PER_TOKEN_LOGPROBS)
      val.top_candidate_ids = jnp.zeros(shape, jnp.int32)
      val.top_candidate_logprobs = jnp.ones(shape, jnp.float32)
    eos = self._settings.eos_ids if self._stop is None else self._stop
    return self._sampler.init_decode_loop_state(val, self._model, rows, eos)

  def _append(self, val: NestedMap, logits: jax.Array) -> NestedMap:
    """Appends a token, chosen by its `logits` [R, V], to each sample."""
    val = NestedMap(val)
    position = val.step + 1
    if self._is_guided:
      logits = self._guided(logits)
    ids = self._sample(val, logits)
    prefix_end = self._steps.repeat(
      self._steps.start.offsets + self._steps.start.lengths
    )
    in_prefix = position < prefix_end
    ids = jnp.where(in_prefix, val.output_ids[:, position], ids)
    ids = jnp.where(val.done, 0, ids).astype(val.output_ids.dtype)
    val.output_ids = val.output_ids.at[:, position].set(ids)
    self._record(val, logits, ids, position)
    val.segment_pos = val.segment_pos + 1
    self._end(val, ids, in_prefix, position + 1 - prefix_end)
    val.step = position
    if self._stream is not None:
      self._stream.call_if_due(val)
    return val

  def _guided(self, logits: jax.Array) -> jax.Array:
    """Returns the guided logits of all rows, twice each."""
    grouped = split_batch_dim(logits, 2 * self._num)
    with_condition, without = jnp.split(grouped, 2, axis=1)
    guided = without + self._scale * (with_condition - without)
    return self._both(guided.reshape(-1, logits.shape[-1]))

  def _sample(self, val: NestedMap, logits: jax.Array) -> jax.Array:
    """Returns new tokens [R]; updates the fields of the sampler in `val`."""
    if self._settings.optimize_eos:
      masked = token_samplers.large_negative_number(logits.dtype)
      logits = logits.at[:, jnp.asarray(self._settings.eos_ids)].set(masked)
    # Pax folds positions of the aligned batch into given keys.
    positions = jnp.where(self._keys_are_given, val.step, val.segment_pos)
    if self._is_guided:
      first = functools.partial(split_batch_dim, num_samples=2 * self._num)
      logits, positions = (
        first(x)[:, : self._num].reshape(-1, *x.shape[1:])
        for x in (logits, positions)
      )
    output = self._sampler(
      self._model,
      logits,
      self._temperature,
      val,
      per_example_top_p=self._top_p,
      per_example_top_k=self._top_k,
      gumbel_prng_key=sample_streams.step_keys(self._keys, positions),
    )
    for name in output.keys() & val.keys():
      val[name] = output[name]
    self._sampled = output
    return self._both(output.new_ids) if self._is_guided else output.new_ids

  def _record(self, val, logits, ids, position):
    """Writes log-probabilities and what else was asked for."""
    found = decoder_utils.token_logprobs(logits, ids)
    output = self._sampled
    if (
      self._settings.use_top_k_for_logprobs and 'logprobs_at_new_ids' in output
    ):
      found = output.logprobs_at_new_ids
      found = self._both(found) if self._is_guided else found
    found = jnp.where(val.done, NO_LOGPROB, found)
    val.logprobs = val.logprobs.at[:, position].set(found)
    if self._settings.optimize_eos:
      eos = jnp.asarray(self._settings.eos_ids, jnp.int32)
      best = eos[jnp.argmax(logits[:, eos], axis=-1)]
      val.eos_ids = val.eos_ids.at[:, position].set(best)
      val.eos_logprobs = val.eos_logprobs.at[:, position].set(
        decoder_utils.token_logprobs(logits, best)
      )
    logprobs = jax.nn.log_softmax(logits)
    if 'entropy' in val:
      entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
      val.entropy = val.entropy.at[:, position].set(entropy)
    if self._num_candidates is not None:
      index = val.step - val.start_step
      values, tokens = candidates(logprobs, self._num_candidates)
      val.top_candidate_logprobs = val.top_candidate_logprobs.at[:, index].set(
        values
      )
      val.top_candidate_ids = val.top_candidate_ids.at[:, index].set(tokens)

  def _end(self, val, ids, in_prefix, decoded):
    """Updates `done`, `has_eos` and `decode_lengths` after new tokens.

    Args:
      val: the state.
      ids: [R], the new tokens.
      in_prefix: [R], whether they are of the prefix.
      decoded: [R], number of tokens after the prefix.
    """
    was_done = val.done
    if self._settings.optimize_eos:
      has_eos = jnp.zeros_like(was_done)
    elif self._stop is None:
      has_eos = decoder_utils.has_any_eos(ids, self._settings.eos_ids)
    else:
      has_eos = self._stops(val)
    has_eos &= ~in_prefix
    val.has_eos = val.has_eos | has_eos
    val.done = was_done | has_eos
    if self._settings.sample_constraint is not None:
      val.done = self._settings.sample_constraint(self._enforced(), val)
    lengths = val.segment_pos + 1
    if self._max_steps is not None:
      val.done = val.done | (decoded >= self._max_steps)
    val.done = val.done | (lengths >= self._settings.seqlen)
    val.decode_lengths = jnp.where(
      ~was_done & val.done, lengths, val.decode_lengths
    )

  def _stops(self, val: NestedMap) -> jax.Array:
    """Returns whether a stop sequence ends at the new tokens, [R]."""
    stop = self._stop if self._stop.ndim == 3 else self._stop[:, None]
    return jnp.any(
      jax.vmap(
        lambda sequences: decoder_utils.end_with_sequences(
          sequences, val.output_ids, val.step + 1
        ),
        in_axes=1,
        out_axes=1,
      )(stop)
      # A sequence of padding only is none.
      & jnp.any(stop != 0, axis=-1),
      axis=1,
    )

  def _enforced(self) -> jax.Array:
    given = self._of_samples('enforce_sample_constraints', both=True)
    if given is None:
      return jnp.ones(len(self._steps.initial_ids()), jnp.int32)
    return given


def candidates(
  logprobs: jax.Array, number: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the most likely tokens and their log-probabilities, [R, 5].

  Args:
    logprobs: [R, V].
    number: [R], of tokens; the others are 0, with the log-probability 1.
  """
  most = min(MAX_NUM_PER_TOKEN_LOGPROBS, logprobs.shape[1])
  values, ids = jax.lax.top_k(logprobs, most)
  missing = ((0, 0), (0, MAX_NUM_PER_TOKEN_LOGPROBS - most))
  values, ids = jnp.pad(values, missing), jnp.pad(ids, missing)
  kept = jnp.arange(MAX_NUM_PER_TOKEN_LOGPROBS) < jnp.minimum(
    number[:, None], most
  )
  return jnp.where(kept, values, 1.0), jnp.where(kept, ids, 0)
