"""Speculative decoding: a small network drafts tokens, a large one checks them.

In each step the draft network proposes tokens, one after another, and the
target network reads all of them at once. They are accepted, or replaced, such
that the tokens have the distribution of the target network alone
(https://arxiv.org/abs/2211.17192).

Shapes: B rows, N samples of a row, R = B * N, P prefix, T positions, V
vocabulary, D drafted tokens.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.decoder_hparams import (
  DecoderHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.decoding import (
  decoder_utils,
  sample_decode,
  sample_steps,
)
from pax_compat.decoding.aligned_steps import NO_LOGPROB, AlignedSteps
from pax_compat.decoding.cached_network import CachedNetwork, States
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.decoding.prefixes import Prefix
from pax_compat.decoding.result_streams import ResultStream
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers

# Settings that change the tokens in a manner that drafts do not support.
_UNSUPPORTED = {
  'optimize_eos': False,
  'sample_constraint': None,
  'cf_guidance_scale': None,
  'use_top_k_for_logprobs': False,
  'process_result_fn': None,
  'min_decode_steps': 0,
  'lazy_prefix_broadcast': False,
  'decode_loop_mesh_axes_transpose': None,
}


def check(
  where: str,
  settings: DecoderHParams,
  draft_steps: int,
  *,
  vocab_sizes: tuple[int | None, int | None],
):
  """Raises a UserError unless a draft can be used.

  Args:
    where: the path of the settings.
    settings: of the decoder.
    draft_steps: D.
    vocab_sizes: of the target and of the draft network.
  """
  if draft_steps < 1:
    raise errors.UserError(
      f'draft_steps is {draft_steps}; expected 1 or more drafted tokens'
    )
  if vocab_sizes[0] != vocab_sizes[1]:
    raise errors.UserError(
      f'the draft model has a vocabulary of {vocab_sizes[1]} tokens, and the'
      f' model one of {vocab_sizes[0]}; expected the same vocabulary'
    )
  if not isinstance(settings, GreedyDecoderHParams | SampleDecoderHParams):
    raise errors.UserError(
      f'{where} is a {type(settings).__name__}, which does not use a draft'
      ' model; expected GreedyDecoderHParams or SampleDecoderHParams'
    )
  for name, default in _UNSUPPORTED.items():
    value = getattr(settings, name, default)
    if value != default:
      raise errors.UserError(
        f'{where}.{name} is {value!r}, which is not supported with a draft'
        f' model; expected {default!r}'
      )
  if not settings.fprop_for_prefix:
    raise errors.UserError(
      f'{where}.fprop_for_prefix is False; expected True, with a draft model'
    )


def as_sampling(settings: DecoderHParams) -> SampleDecoderHParams:
  """Returns greedy settings as those of sampling at the temperature 0."""
  if isinstance(settings, SampleDecoderHParams):
    return settings
  fields = {
    field.name: getattr(settings, field.name)
    for field in dataclasses.fields(settings)
    if field.init
  }
  return SampleDecoderHParams(**fields, temperature=0.0, k=0)


class _State(flax.struct.PyTreeNode):
  """The carry of the loop.

  Attributes:
    position: [R], the last token of each row, which no network has read yet.
    ids: [R, T], the tokens.
    logprobs: [R, T], of the tokens.
    done: [R], whether a row has ended.
    steps: [R], number of steps that a row has needed.
    target: states of the target network.
    draft: states of the draft network.
  """

  position: jax.Array
  ids: jax.Array
  logprobs: jax.Array
  done: jax.Array
  steps: jax.Array
  target: States
  draft: States


def speculative_decode(
  target: CachedNetwork,
  draft: CachedNetwork,
  settings: SampleDecoderHParams,
  prefix: Prefix,
  keys: jax.Array,
  *,
  draft_steps: int,
  causal_prefix: tuple[bool, bool] = (True, True),
  result_callback: StreamingResultCallback | None = None,
) -> NestedMap:
  """Samples until every sample has ended.

  Args:
    target: computes the logits of the tokens that are sampled.
    draft: computes the logits of proposed tokens.
    settings: of the decoder; see `check`.
    prefix: the prefixes, left-aligned.
    keys: typed keys [B], the random stream of each example.
    draft_steps: D, number of tokens that are proposed in a step.
    causal_prefix: whether attention of the target, and of the draft, within
      the prefix is causal.
    result_callback: gets the tokens of each step, `decode_lengths` [B, N] of
      [B, N, D + 1]; None for none.

  Returns:
    The results of `sample_decode`; and `target_steps` [B, N], the number of
    steps of the target network in which a sample has got its tokens, that over
    the prefix included.

  Raises:
    UserError: a network cannot go back to earlier positions.
  """
  for name, network in (('model', target), ('draft model', draft)):
    network.check_rewinds(f'the {name}')
  if len(settings.decode_stages) > 1:
    settings = settings.clone()
    settings.max_decode_steps = settings.last_decode_step
  steps = [
    AlignedSteps(
      network,
      settings,
      prefix,
      repeats=settings.num_samples,
      causal_prefix=is_causal,
      # A step reads, and writes, behind the last token that is kept.
      room=draft_steps + 1,
    )
    for network, is_causal in zip((target, draft), causal_prefix, strict=True)
  ]
  stream = None
  if result_callback is not None:
    stream = ResultStream(
      result_callback,
      steps[0].first,
      lambda x: sample_steps.split_batch_dim(x, 0, settings.num_samples),
      steps[0].prefix.lengths,
    )
    stream.begin(len(keys), settings.num_samples)
  loop = _Loop(
    steps[0], steps[1], [target, draft], settings, keys, draft_steps, stream
  )
  result = _result(loop.run(), steps[0], settings)
  if stream is not None:
    stream.end()
  result = jax.tree.map(
    lambda x: sample_steps.split_batch_dim(x, 0, settings.num_samples), result
  )
  if settings.num_samples > 1 and settings.sort_samples:
    return sample_decode.sort_samples_by_scores(result)
  return result


def _result(
  state: _State, steps: AlignedSteps, settings: SampleDecoderHParams
) -> NestedMap:
  """Returns the results [R, ...] of the last state."""
  total = steps.first + settings.last_decode_step
  lengths = steps.repeat(steps.prefix.lengths)
  return NestedMap(
    prefix_ids=steps.repeat(steps.padded_prefix_ids()),
    prefix_lengths=lengths,
    original_lengths=lengths,
    output_ids=steps.left_aligned(state.ids, 0)[:, :total],
    logprobs=steps.left_aligned(state.logprobs, NO_LOGPROB)[:, :total],
    decode_lengths=state.position + 1 - steps.repeat(steps.start.offsets),
    target_steps=state.steps,
  )


class _Loop:
  """The decoding loop."""

  def __init__(
    self,
    target: AlignedSteps,
    draft: AlignedSteps,
    networks: list[CachedNetwork],
    settings: SampleDecoderHParams,
    keys: jax.Array,
    draft_steps: int,
    stream: ResultStream | None,
  ):
    self._stream = stream
    self._target, self._draft = target, draft
    self._networks = networks
    self._settings = settings
    self._drafted = draft_steps
    self._sampler = settings.next_token_sampler()
    self._keys = sample_streams.sample_keys(keys, settings.num_samples)
    self._offsets = target.repeat(target.start.offsets)
    # The number of positions that a row may fill.
    self._limit = jnp.minimum(
      target.first + settings.last_decode_step, self._offsets + settings.seqlen
    )

  def run(self) -> _State:
    """Returns the last state."""
    return jax.lax.while_loop(
      lambda state: ~jnp.all(state.done), self._body, self._initial_state()
    )

  def _initial_state(self) -> _State:
    """Returns the state after the prefix and the first sampled token."""
    logits, states = self._target.read_prefix()
    _, draft_states = self._draft.read_prefix()
    ids = self._target.initial_ids()
    rows, last = len(ids), self._target.first - 1
    state = _State(
      position=jnp.full([rows], last, jnp.int32),
      ids=ids,
      logprobs=jnp.full(ids.shape, NO_LOGPROB, jnp.float32),
      done=self._limit <= last + 1,
      steps=jnp.zeros([rows], jnp.int32),
      target=self._networks[0].per_row(states),
      draft=self._networks[1].per_row(draft_states),
    )
    keys = sample_streams.step_keys(self._keys, last - self._offsets)
    first = _draw(keys, self._probabilities(logits))
    return self._write(
      state, first[:, None], logits[:, None], jnp.ones_like(first)
    )

  def _probabilities(self, logits: jax.Array) -> jax.Array:
    """Returns the probabilities [..., V] of the next token."""
    probs = self._sampler.probabilities(
      logits.reshape(-1, logits.shape[-1]), self._settings.temperature
    )
    return probs.reshape(logits.shape)

  def _body(self, state: _State) -> _State:
    keys = sample_streams.step_keys(self._keys, state.position - self._offsets)
    keys = jax.vmap(lambda key: jax.random.split(key, self._drafted + 2))(keys)
    drafted, draft_probs, draft_states = self._propose(state, keys[:, 2:])
    last = jnp.take_along_axis(state.ids, state.position[:, None], axis=1)
    logits, states = self._target.read_rows(
      state.target, jnp.concatenate([last, drafted], axis=1), state.position
    )
    accepted, other = _accept(
      keys[:, 0], keys[:, 1], drafted, draft_probs, self._probabilities(logits)
    )
    is_drafted = jnp.arange(self._drafted + 1) < accepted[:, None]
    new = jnp.where(
      is_drafted, jnp.pad(drafted, ((0, 0), (0, 1))), other[:, None]
    )
    return self._write(
      state.replace(target=states, draft=draft_states),
      new,
      logits,
      accepted + 1,
    )

  def _propose(
    self, state: _State, keys: jax.Array
  ) -> tuple[jax.Array, jax.Array, States]:
    """Drafts tokens.

    Args:
      state: the state.
      keys: [R, D].

    Returns:
      Tokens [R, D], the probabilities [R, D, V] that they were drawn with, and
      the new states.
    """
    # The last two tokens: of the last step the draft network may not have read
    # its last proposal.
    before = state.position[:, None] - jnp.array([1, 0])
    ids = jnp.take_along_axis(state.ids, before, axis=1)
    logits, states = self._draft.read_rows(state.draft, ids, before[:, 0])
    probs = self._probabilities(logits[:, -1])
    token = _draw(keys[:, 0], probs)

    def step(carry, given):
      states, token = carry
      number, keys = given
      logits, states = self._draft.read_rows(
        states, token[:, None], state.position + number
      )
      probs = self._probabilities(logits[:, 0])
      token = _draw(keys, probs)
      return (states, token), (token, probs)

    numbers = jnp.arange(1, self._drafted)
    (states, _), (tokens, others) = jax.lax.scan(
      step, (states, token), (numbers, keys[:, 1:].T)
    )
    tokens = jnp.concatenate([token[None], tokens])
    others = jnp.concatenate([probs[None], others])
    return tokens.T, jnp.swapaxes(others, 0, 1), states

  def _write(
    self, state: _State, new: jax.Array, logits: jax.Array, count: jax.Array
  ) -> _State:
    """Appends tokens.

    Args:
      state: the state.
      new: [R, C], tokens.
      logits: [R, C, V], of the target network for these tokens.
      count: [R], how many of them are kept, unless a sequence ends before.
    """
    index = jnp.arange(new.shape[1])
    room = self._limit - 1 - state.position
    is_end = decoder_utils.has_any_eos(new, self._settings.eos_ids)
    is_end &= index < jnp.minimum(count, room)[:, None]
    to_end = jnp.where(
      jnp.any(is_end, axis=1), jnp.argmax(is_end, axis=1) + 1, new.shape[1]
    )
    count = jnp.minimum(jnp.minimum(count, room), to_end)
    count = jnp.where(state.done, 0, count)
    kept = index < count[:, None]
    logprobs = decoder_utils.token_logprobs(
      logits.reshape(-1, logits.shape[-1]), new.ravel()
    ).reshape(new.shape)
    new = jnp.where(kept, new, 0)
    logprobs = jnp.where(kept, logprobs, NO_LOGPROB)
    start = state.position + 1
    done = state.done | jnp.any(is_end, axis=1) | (count >= room)
    if self._stream is not None:
      self._stream.call(
        NestedMap(
          output_ids=new,
          decode_lengths=count,
          scores=jnp.sum(jnp.minimum(logprobs, 0), axis=1),
          done=done,
        ),
        # Of a row that goes on, the steps of the loop.
        jnp.max(state.steps),
      )
    return state.replace(
      position=state.position + count,
      ids=_put(state.ids, new, start),
      logprobs=_put(state.logprobs, logprobs, start),
      done=done,
      steps=state.steps + ~state.done,
    )


def _accept(
  key: jax.Array,
  other_key: jax.Array,
  drafted: jax.Array,
  draft_probs: jax.Array,
  probs: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Accepts drafted tokens, so that tokens have the target's distribution.

  Args:
    key: [R], keys of what is accepted.
    other_key: [R], keys of the tokens instead.
    drafted: [R, D].
    draft_probs: [R, D, V], with which they were drawn.
    probs: [R, D + 1, V], of the target.

  Returns:
    How many are accepted [R], and the token after them [R].
  """
  size = drafted.shape[1]

  def of_drafted(x):
    return jnp.take_along_axis(x, drafted[..., None], axis=2)[..., 0]

  uniform = jax.vmap(lambda key: jax.random.uniform(key, [size]))(key)
  is_accepted = uniform * of_drafted(draft_probs) < of_drafted(probs[:, :-1])
  accepted = jnp.sum(jnp.cumprod(is_accepted, axis=1, dtype=jnp.int32), axis=1)
  # After a token that is not accepted, what the draft lacks; after the last
  # one all of the target's distribution.
  missing = jnp.pad(draft_probs, ((0, 0), (0, 1), (0, 0)))
  at = accepted[:, None, None]
  wanted = jnp.take_along_axis(probs, at, axis=1)[:, 0]
  rest = wanted - jnp.take_along_axis(missing, at, axis=1)[:, 0]
  rest = jnp.maximum(rest, 0)
  # Equal distributions may differ by rounding alone.
  has_rest = jnp.any(rest > 0, axis=1, keepdims=True)
  return accepted, _draw(other_key, jnp.where(has_rest, rest, wanted))


def _draw(keys: jax.Array, probs: jax.Array) -> jax.Array:
  """Draws tokens [R] of probabilities [R, V], which need not add up to 1."""
  noise = token_samplers.gumbel_noise(keys, probs.shape)
  return jnp.argmax(jnp.log(probs) + noise, axis=1).astype(jnp.int32)


def _put(x: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
  """Writes `new` [R, C] into `x` [R, T], from `start` [R] on."""
  return jax.vmap(
    lambda row, values, at: jax.lax.dynamic_update_slice(
      row, values.astype(row.dtype), [at]
    )
  )(x, new, start)
