"""Continuous batching: sequences join and leave the batch at any step.

The batch has slots. A sequence takes a slot when its prefix has been read, and
leaves it when it has ended; each slot is at a position of its own.

Shapes: R slots, P prefix, T positions of a slot, V vocabulary.
"""

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.decoder_hparams import (
  DecoderHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.decoding import decoder_utils, prefixes
from pax_compat.decoding.aligned_steps import (
  NO_LOGPROB,
  AlignedSteps,
  aligned_positions,
)
from pax_compat.decoding.cached_network import CachedNetwork, States
from pax_compat.decoding.prefixes import Prefix
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers

_EXPECTED = {
  'fprop_for_prefix': True,
  'num_samples': 1,
  'optimize_eos': False,
  'sample_constraint': None,
  'cf_guidance_scale': None,
  'use_top_k_for_logprobs': False,
  'process_result_fn': None,
  'min_decode_steps': 0,
  'lazy_prefix_broadcast': False,
  'decode_loop_mesh_axes_transpose': None,
}


def check(where: str, settings: DecoderHParams):
  """Raises a UserError unless slots can decode with these settings.

  Args:
    where: the path of the settings.
    settings: of the decoder.
  """
  if not isinstance(settings, GreedyDecoderHParams | SampleDecoderHParams):
    raise errors.UserError(
      f'{where} is a {type(settings).__name__}, which does not decode in slots;'
      ' expected GreedyDecoderHParams or SampleDecoderHParams'
    )
  for name, expected in _EXPECTED.items():
    value = getattr(settings, name, expected)
    if value != expected:
      raise errors.UserError(
        f'{where}.{name} is {value!r}; expected {expected!r}, to decode in'
        ' slots'
      )
  sampler = getattr(settings, 'next_token_sampler_tpl', None)
  if sampler is not None and not issubclass(
    sampler.cls, token_samplers.DefaultNextTokenSampler
  ):
    raise errors.UserError(
      f'{where}.next_token_sampler_tpl is a {sampler.cls.__name__}; expected a'
      ' DefaultNextTokenSampler, to decode in slots'
    )


class Slots(flax.struct.PyTreeNode):
  """The state of all slots.

  Attributes:
    ids: [R, T], the tokens, prefixes included.
    logprobs: [R, T], of the tokens; 1 where none was predicted.
    offsets: [R], index of the first token.
    position: [R], index of the last token.
    limit: [R], the index at which a sequence ends in any case.
    done: [R], whether the sequence has ended, or there was none yet.
    keys: [R], the random streams.
    temperature: [R].
    states: of `CachedNetwork.per_row`.
  """

  ids: jax.Array
  logprobs: jax.Array
  offsets: jax.Array
  position: jax.Array
  limit: jax.Array
  done: jax.Array
  keys: jax.Array
  temperature: jax.Array
  states: States


class SlotDecoder:
  """Functions of slots; they can be compiled."""

  def __init__(
    self,
    single: CachedNetwork,
    key: jax.Array,
    network: CachedNetwork,
    settings: SampleDecoderHParams,
    *,
    slots: int,
    positions: int,
    causal_prefix: bool = True,
  ):
    """Takes a network.

    Args:
      single: computes logits of one row.
      key: [], the key of the program. With it and its tokens, a sequence has
        the samples of `sample_decode`.
      network: computes logits of R rows.
      settings: of the decoder; see `check`.
      slots: R.
      positions: T.
      causal_prefix: whether attention within the prefix is causal.
    """
    self._single, self._network = single, network
    self._key = key
    self._causal_prefix = causal_prefix
    self._settings = settings
    self._slots, self._positions = slots, positions
    self._sampler = settings.next_token_sampler()

  def empty(self) -> Slots:
    """Returns slots without sequences."""
    rows, total = self._slots, self._positions
    zeros = jnp.zeros([rows], jnp.int32)
    return Slots(
      ids=jnp.zeros([rows, total], jnp.int32),
      logprobs=jnp.full([rows, total], NO_LOGPROB, jnp.float32),
      offsets=zeros,
      position=zeros,
      limit=zeros,
      done=jnp.ones([rows], bool),
      keys=jax.random.split(self._key, rows),
      temperature=jnp.zeros([rows], jnp.float32),
      states=self._network.per_row(self._network.init_states(total)),
    )

  def insert(
    self,
    slots: Slots,
    slot: jax.Array,
    prefix: Prefix,
    *,
    max_steps: jax.Array,
    temperature: jax.Array,
  ) -> Slots:
    """Reads a prefix, decodes the first token after it, and takes a slot.

    Args:
      slots: the slots.
      slot: [], the index of a slot whose sequence has ended.
      prefix: one prefix, left-aligned; P is below T.
      max_steps: [], the maximum number of tokens to add.
      temperature: [].
    """
    settings = self._settings.clone()
    settings.max_decode_steps = self._positions - prefix.ids.shape[1]
    steps = AlignedSteps(
      self._single, settings, prefix, causal_prefix=self._causal_prefix
    )
    key = sample_streams.content_keys(self._key, *prefixes.content(prefix))
    logits, states = steps.read_prefix()
    states = self._single.per_row(states)
    first = Slots(
      ids=steps.initial_ids(),
      logprobs=jnp.full([1, steps.total], NO_LOGPROB, jnp.float32),
      offsets=steps.start.offsets,
      position=jnp.full([1], steps.first - 1, jnp.int32),
      limit=jnp.minimum(
        steps.first + jnp.minimum(max_steps, settings.max_decode_steps),
        steps.start.offsets + settings.seqlen,
      ),
      done=jnp.zeros([1], bool),
      keys=sample_streams.sample_keys(key, 1),
      temperature=temperature[None],
      states=None,
    )
    first = self._append(first, logits)
    return slots.replace(
      states=self._network.put_row(slots.states, states, slot),
      **{
        name: jax.lax.dynamic_update_slice_in_dim(
          getattr(slots, name),
          getattr(first, name),
          slot,
          axis=0,
        )
        for name in slots.__dataclass_fields__
        if name != 'states'
      },
    )

  def decode(self, slots: Slots, steps: int) -> Slots:
    """Decodes up to `steps` tokens of each sequence.

    It ends earlier as soon as a sequence ends, so that another one can take its
    slot.
    """
    active = ~slots.done

    def goes_on(carry):
      number, slots = carry
      return (number < steps) & ~jnp.any(active & slots.done)

    def step(carry):
      number, slots = carry
      return number + 1, self._step(slots)

    return jax.lax.while_loop(
      goes_on, step, (jnp.where(jnp.any(active), 0, steps), slots)
    )[1]

  def _step(self, slots: Slots) -> Slots:
    ids = jnp.take_along_axis(slots.ids, slots.position[:, None], axis=1)
    logits, states = self._network.step_rows(
      slots.states,
      ids,
      slots.position,
      **aligned_positions(
        slots.offsets, slots.position[:, None], self._positions
      ),
    )
    return self._append(slots, logits[:, 0]).replace(states=states)

  def _append(self, slots: Slots, logits: jax.Array) -> Slots:
    """Appends a token, chosen by its `logits` [R, V], to each sequence."""
    ids = self._sampler(
      self._network.module,
      logits,
      slots.temperature[:, None],
      NestedMap(),
      gumbel_prng_key=sample_streams.step_keys(
        slots.keys, slots.position - slots.offsets
      ),
    ).new_ids
    is_new = ~slots.done & (slots.position + 1 < slots.limit)
    position = slots.position + is_new
    at = (jnp.arange(slots.ids.shape[1]) == position[:, None]) & is_new[:, None]
    logprobs = decoder_utils.token_logprobs(logits, ids)
    ended = decoder_utils.has_any_eos(ids, self._settings.eos_ids)
    return slots.replace(
      ids=jnp.where(at, ids[:, None].astype(slots.ids.dtype), slots.ids),
      logprobs=jnp.where(at, logprobs[:, None], slots.logprobs),
      position=position,
      done=slots.done | ended | (position + 1 >= slots.limit),
    )


def single_prefix(ids: jax.Array, length: jax.Array) -> Prefix:
  """Returns one prefix, the first `length` [] tokens of `ids` [P]."""
  return prefixes.create(ids[None], length[None])
