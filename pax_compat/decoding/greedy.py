"""Greedy decoding: the most likely token in each step.

Shapes: B batch, P prefix, L tokens of a step, T maximum number of positions, V
vocabulary.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.decoder_hparams import DecoderHParams
from pax_compat.decoding import decoder_utils, prefixes
from pax_compat.decoding.aligned_steps import NO_LOGPROB
from pax_compat.decoding.cached_network import ExtendStepFn
from pax_compat.decoding.prefixes import Prefix
from pax_compat.nested_map import NestedMap


class _State(flax.struct.PyTreeNode):
  """The carry of the decoding loop.

  Attributes:
    position: [], int, the last decoded position.
    ids: [B, T], int, the tokens; after `position` those of prefixes only.
    logprobs: [B, T], of the tokens.
    lengths: [B], int, number of tokens of each sequence so far.
    done: [B], bool, whether a sequence has ended.
  """

  position: jax.Array
  ids: jax.Array
  logprobs: jax.Array
  lengths: jax.Array
  done: jax.Array


def greedy_decode(
  network: base_layer.BaseLayer,
  settings: DecoderHParams,
  prefix: Prefix,
  *,
  init_states: Callable[[Any, int], None],
  extend_step: ExtendStepFn,
  causal_prefix: bool = True,
) -> NestedMap:
  """Decodes until every sequence has ended.

  Args:
    network: computes logits; its decode states must be mutable.
    settings: of the decoder.
    prefix: the prefixes, left-aligned.
    init_states: (network, T), initialises decode states of T positions.
    extend_step: computes the logits of the next tokens.
    causal_prefix: whether attention within the prefix is causal.

  Returns:
    As of a single sample, `prefix_ids` [B, 1, P], see `prefixes.with_room`, and
    `prefix_lengths` [B, 1]; `output_ids`
    [B, 1, T], prefixes and decoded tokens, padded with 0; `decode_lengths`
    [B, 1], the lengths of the outputs, prefix and end-of-sequence token
    included; and `logprobs` [B, 1, T] of the output's tokens, or 1 for tokens
    that were not predicted: the first one, those of a prefix that was read in
    one step, and padding.

  Raises:
    UserError: the decode states are not mutable.
  """
  if not network.is_mutable_collection(base_layer.DECODE_CACHE):
    raise errors.UserError(
      f'{type(network).__name__}: to decode, the collection'
      f' {base_layer.DECODE_CACHE!r} must be mutable'
    )
  prefix = prefixes.truncate(prefix, settings.seqlen)
  if settings.fprop_for_prefix:
    start, first = prefixes.right_aligned(prefix), prefix.ids.shape[1]
    length = first + settings.last_decode_step
  else:
    start, first, length = prefix, 1, settings.seqlen
  start = prefixes.pad(start, length)
  loop = _Loop(settings, start, extend_step)
  state = loop.initial_state(first)
  init_states(network, length)
  if first < length:
    state = loop.extend(network, state, first, causal=causal_prefix)
    state = nn.while_loop(
      lambda _, s: (s.position < length - 1) & ~jnp.all(s.done),
      lambda net, s: loop.extend(net, s, 1, causal=True),
      network,
      state,
      carry_variables=base_layer.DECODE_CACHE,
      split_rngs={True: True},
    )
  result = NestedMap(
    prefix_ids=prefixes.with_room(prefix, settings).ids,
    prefix_lengths=prefix.lengths,
    output_ids=prefixes.left_aligned(state.ids, start.offsets, 0),
    decode_lengths=state.lengths,
    logprobs=prefixes.left_aligned(state.logprobs, start.offsets, NO_LOGPROB),
  )
  result = jax.tree.map(lambda x: x[:, None], result)
  if settings.process_result_fn is not None:
    result = settings.process_result_fn(network, result)
  return result


class _Loop:
  """The steps of the decoding loop."""

  def __init__(
    self, settings: DecoderHParams, start: Prefix, extend_step: ExtendStepFn
  ):
    self._settings = settings
    self._extend_step = extend_step
    self._start = start
    self._eos = jnp.asarray(settings.eos_ids, jnp.int32)

  def initial_state(self, first: int) -> _State:
    """Returns the state after the first `first` positions."""
    ids = self._start.ids
    lengths = first - self._start.offsets
    return _State(
      position=jnp.asarray(first - 1, jnp.int32),
      ids=ids,
      logprobs=jnp.full(ids.shape, NO_LOGPROB, jnp.float32),
      lengths=lengths,
      done=lengths >= self._settings.seqlen,
    )

  def extend(
    self, network: Any, state: _State, steps: int, *, causal: bool
  ) -> _State:
    """Reads the last `steps` tokens, and decodes the next one."""
    time_step = state.position - (steps - 1)
    ids = jax.lax.dynamic_slice_in_dim(state.ids, time_step, steps, axis=1)
    positions = {}
    if self._settings.fprop_for_prefix:
      positions = self._positions(state, time_step + jnp.arange(steps))
    logits = self._extend_step(
      network, ids, time_step=time_step, causal=causal, **positions
    )
    return self._write(state, logits[:, -1].astype(jnp.float32))

  def _positions(
    self, state: _State, indices: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns `segment_pos` and `mask` of a step after aligned prefixes."""
    offsets = self._start.offsets[:, None]
    is_token = jnp.arange(state.ids.shape[1]) >= offsets
    return {
      'segment_pos': jnp.maximum(indices - offsets, 0),
      # Masks the padding before a prefix.
      'mask': is_token[:, None, None, :],
    }

  def _write(self, state: _State, logits: jax.Array) -> _State:
    """Appends a token, chosen by its `logits` [B, V]."""
    position = state.position + 1
    prefix_end = self._start.offsets + self._start.lengths
    decoded = position - prefix_end
    in_prefix = decoded < 0
    chosen = jnp.argmax(self._without_early_end(logits, decoded), axis=-1)
    ids = jnp.where(in_prefix, state.ids[:, position], chosen)
    ids = jnp.where(state.done, 0, ids).astype(state.ids.dtype)
    logprobs = decoder_utils.token_logprobs(logits, ids)
    logprobs = jnp.where(state.done, NO_LOGPROB, logprobs)
    lengths = state.lengths + ~state.done
    ended = jnp.isin(ids, self._eos) & ~in_prefix
    ended |= lengths >= self._settings.seqlen
    if self._settings.last_decode_step is not None:
      ended |= decoded + 1 >= self._settings.last_decode_step
    return _State(
      position=position,
      ids=state.ids.at[:, position].set(ids),
      logprobs=state.logprobs.at[:, position].set(logprobs),
      lengths=lengths,
      done=state.done | ended,
    )

  def _without_early_end(
    self, logits: jax.Array, decoded: jax.Array
  ) -> jax.Array:
    """Masks end tokens in `logits` [B, V] before `min_decode_steps`."""
    if not self._settings.min_decode_steps:
      return logits
    is_eos = jnp.isin(jnp.arange(logits.shape[-1]), self._eos)
    early = decoded < self._settings.min_decode_steps
    return jnp.where(early[:, None] & is_eos, -jnp.inf, logits)
