"""Beam search: the most likely continuations of each prefix.

Shapes: B rows, K hypotheses of a row, P prefix, T positions, V vocabulary.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pax_compat.decoder_hparams import BeamSearchHParams
from pax_compat.decoding import decoder_utils
from pax_compat.decoding.aligned_steps import NO_LOGPROB, AlignedSteps
from pax_compat.decoding.cached_network import CachedNetwork, Reordered, States
from pax_compat.decoding.decoder_utils import NO_SCORE
from pax_compat.decoding.prefixes import Prefix
from pax_compat.nested_map import NestedMap

# The fields of ended hypotheses, best first.
_ENDED = ('ids', 'lengths', 'scores', 'logprobs')


def beam_search(
  network: CachedNetwork,
  settings: BeamSearchHParams,
  prefix: Prefix,
  *,
  causal_prefix: bool = True,
  search: 'Callable[..., Search]',
) -> NestedMap:
  """Searches the most likely sequences that end.

  A step extends each hypothesis by its best tokens, and keeps the K best of all
  of them; hypotheses that end compete for the result by their score, the
  log-probability divided by `length_norm`. There are fewer than K hypotheses at
  first: a slot that no hypothesis has reached has a score near -1e9. Without an
  end token, an `eos_id` of -1, sequences end with the last step.

  Args:
    network: computes logits.
    settings: of the search.
    prefix: the prefixes, left-aligned.
    causal_prefix: whether attention within the prefix is causal.
    search: makes the search of (network, settings, steps), such as `Search`.

  Returns:
    `output_ids` [B, K, T], prefixes and hypotheses, best first, padded with 0;
    `scores` [B, K]; `decode_lengths` [B, K], with the prefix and the end;
    `logprobs` [B, K, T] of the tokens, or 1 for those of the prefix and
    padding; `done` [B, K], whether the hypotheses left in the beam have ended;
    `prefix_ids` [B, 1, P], and `prefix_lengths` and `original_lengths` [B, K].
  """
  steps = AlignedSteps(
    network,
    settings,
    prefix,
    repeats=settings.beam_size,
    causal_prefix=causal_prefix,
  )
  val = search(network, settings, steps).run()
  rows, beams = val.end_scores.shape

  def aligned(x: jax.Array, fill: float) -> jax.Array:
    flat = steps.left_aligned(x.reshape(rows * beams, -1), fill)
    return flat.reshape(rows, beams, -1)

  lengths = steps.repeat(steps.prefix.lengths).reshape(rows, beams)
  return NestedMap(
    output_ids=aligned(val.end_ids, 0),
    scores=val.end_scores,
    decode_lengths=val.end_lengths,
    logprobs=aligned(val.end_logprobs, NO_LOGPROB),
    done=val.done,
    prefix_ids=steps.prefix.ids[:, None],
    prefix_lengths=lengths,
    original_lengths=lengths,
  )


def update_ended(ended: dict, new: dict) -> dict:
  """Returns the best of ended hypotheses [B, K, ...] by their `scores`.

  Args:
    ended: the best so far, by field.
    new: others.
  """
  merged = {
    name: jnp.concatenate([ended[name], new[name]], axis=1) for name in ended
  }
  scores, indices = jax.lax.top_k(merged['scores'], ended['scores'].shape[1])
  return {
    **{name: shuffle(x, indices) for name, x in merged.items()},
    'scores': scores,
  }


def shuffle(x: jax.Array, hyp_ids: jax.Array) -> jax.Array:
  """Returns the hypotheses `hyp_ids` [B, K] of `x` [B, K', ...]."""
  return jax.vmap(lambda row, index: row[index])(x, hyp_ids)


class Search:
  """The loop; its state is (NestedMap, states of the network)."""

  def __init__(
    self,
    network: CachedNetwork,
    settings: BeamSearchHParams,
    steps: AlignedSteps,
  ):
    self._network = network
    self._settings = settings
    self._steps = steps
    self._beams = settings.beam_size
    # Negative ids stand for no token.
    self._eos = tuple(token for token in settings.eos_ids if token >= 0)
    self._tokens = settings.tokens_per_beam or settings.beam_size

  def run(self) -> NestedMap:
    """Returns the last state."""
    steps = self._steps
    val = self._initial_state()
    logits, states = steps.read_prefix()
    val, states = self._extend(val, states, logits)
    for number, length in enumerate(steps.lengths):
      if number:
        states = self._network.settled(states, steps.first)
        states = steps.grow(states, steps.lengths[number - 1], length)
        same = jnp.broadcast_to(jnp.arange(self._beams), val.done.shape)
        states = self.reordered(states, same)
      val, states = jax.lax.while_loop(
        functools.partial(steps.goes_on, length),
        functools.partial(self._body, length),
        (val, states),
      )
    return val if self._eos else self._without_end(val)

  def _without_end(self, val: NestedMap) -> NestedMap:
    """Returns the state with the hypotheses of the last step as its result."""
    val = NestedMap(val)
    decoded = val.step + 1 - self._steps.first
    lengths = self._steps.repeat(self._steps.prefix.lengths)
    val.end_ids, val.end_logprobs = val.output_ids, val.logprobs
    val.end_lengths = lengths.reshape(val.end_lengths.shape) + decoded
    val.end_scores = val.hyp_scores / decoder_utils.length_norm(
      decoded, self._settings.length_norm_alpha
    )
    return val

  def _initial_state(self) -> NestedMap:
    steps = self._steps
    ids = steps.initial_ids().reshape(-1, self._beams, steps.total)
    shape = ids.shape[:2]
    # All hypotheses are the same at first: only one of them counts.
    penalties = NO_SCORE * jnp.arange(self._beams, dtype=jnp.float32)
    return NestedMap(
      step=jnp.asarray(steps.first - 1, jnp.int32),
      output_ids=ids,
      logprobs=jnp.full(ids.shape, NO_LOGPROB, jnp.float32),
      hyp_scores=jnp.broadcast_to(penalties, shape),
      done=jnp.zeros(shape, bool),
      end_ids=ids,
      end_lengths=jnp.full(shape, steps.total, jnp.int32),
      end_scores=jnp.full(shape, NO_SCORE, jnp.float32),
      end_logprobs=jnp.zeros(ids.shape, jnp.float32),
    )

  def _body(self, length: int, state: tuple[NestedMap, States]):
    val, states = state
    states = self._network.settled(states, self._steps.first)
    ids = jax.lax.dynamic_index_in_dim(val.output_ids, val.step, 2, False)
    logits, states = self._steps.read(states, ids.ravel(), val.step, length)
    return self._extend(val, states, logits)

  def _extend(
    self, val: NestedMap, states: States, logits: jax.Array
  ) -> tuple[NestedMap, Reordered]:
    """Extends the hypotheses by their next tokens.

    Args:
      val: the state.
      states: the states of the network.
      logits: [B * K, V].
    """
    val = NestedMap(val)
    settings = self._settings
    logprobs = jax.nn.log_softmax(logits).reshape(
      *val.hyp_scores.shape, logits.shape[-1]
    )
    position = val.step + 1
    decoded = position + 1 - self._steps.first
    if settings.min_decode_steps and self._eos:
      is_early = decoded <= settings.min_decode_steps
      is_eos = jnp.isin(jnp.arange(logits.shape[-1]), jnp.asarray(self._eos))
      logprobs = jnp.where(is_early & is_eos, -1e20, logprobs)
    if self._eos:
      self._end(val, logprobs, position, decoded)
    _, tokens, scores, indices = decoder_utils.two_stage_topk(
      logprobs,
      val.hyp_scores,
      # With an early exit, hypotheses that have ended stay.
      () if settings.early_exit else self._eos,
      self._tokens,
    )
    hyps = indices // self._tokens
    ids = decoder_utils.gather_output_id(tokens, indices)
    found = decoder_utils.gather_logprobs(logprobs, hyps, ids)
    ids = ids + settings.output_id_offset
    val.hyp_scores = scores
    val.done = shuffle(val.done, hyps) | decoder_utils.has_any_eos(
      ids, settings.eos_ids
    )
    for name, new in (('output_ids', ids), ('logprobs', found)):
      val[name] = shuffle(val[name], hyps).at[:, :, position].set(new)
    val.step = position
    return val, self.reordered(states, hyps)

  def reordered(self, states: States, hyps: jax.Array) -> Reordered:
    """Returns the states of the hypotheses `hyps` [B, K]."""
    return self._network.reordered(states, hyps, self._steps.first)

  def _end(self, val, logprobs, position, decoded):
    """Ends each hypothesis by its best end token; keeps the best of all."""
    eos = jnp.asarray(self._eos, jnp.int32)
    of_eos = logprobs[:, :, eos]
    best = jnp.argmax(of_eos, axis=-1)
    score = val.hyp_scores + jnp.max(of_eos, axis=-1)
    is_hyp = score > NO_SCORE
    score = jnp.maximum(score, NO_SCORE) / decoder_utils.length_norm(
      decoded, self._settings.length_norm_alpha
    )
    self.keep_ended(
      val,
      position,
      tokens=jnp.where(is_hyp, eos[best], 0),
      scores=score,
      logprobs=jnp.max(of_eos, axis=-1),
    )

  def keep_ended(
    self,
    val: NestedMap,
    position: jax.Array,
    *,
    tokens: jax.Array,
    scores: jax.Array,
    logprobs: jax.Array,
  ):
    """Ends each hypothesis; keeps the best of them and of those before.

    Args:
      val: the state; its fields of ended hypotheses are set.
      position: [], of the end.
      tokens: [B, K], the last tokens.
      scores: [B, K], of the ended hypotheses.
      logprobs: [B, K], of the last tokens.
    """
    prefix_lengths = self._steps.repeat(self._steps.prefix.lengths)
    decoded = position + 1 - self._steps.first
    new = {
      'ids': val.output_ids.at[:, :, position].set(tokens),
      'lengths': decoded + prefix_lengths.reshape(scores.shape),
      'scores': scores,
      'logprobs': val.logprobs.at[:, :, position].set(logprobs),
    }
    ended = update_ended({n: val[f'end_{n}'] for n in _ENDED}, new)
    for name, value in ended.items():
      val[f'end_{name}'] = value
