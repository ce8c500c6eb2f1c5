"""The loop of `pax_sampling`: a token of each row in each step.

Shapes: B rows, N samples of a row, R = B * N, P prefix, T positions, V
vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.decoder_hparams import SampleDecoderHParams
from pax_compat.decoding import state_alignment
from pax_compat.decoding.aligned_steps import NO_LOGPROB
from pax_compat.decoding.result_streams import ResultStream
from pax_compat.decoding.sample_steps import Rows, SampleSteps
from pax_compat.nested_map import NestedMap

# What a step adds; the loop with a fixed number of steps stacks it.
_STACKED = (base_layer.SUMMARIES, base_layer.AUX_LOSS)


@dataclasses.dataclass(frozen=True)
class Prefixes:
  """What is continued, and how far.

  Attributes:
    ids: [R, P].
    lengths: [R].
    original_lengths: [R], by their paddings.
    are_read: whether the model has read them; then they are right-aligned.
    start: the position that the first step reads.
    total: T.
    stages: numbers of decoded tokens at which decode states grow, ascending.
  """

  ids: jax.Array
  lengths: jax.Array
  original_lengths: jax.Array
  are_read: bool
  start: int
  total: int
  stages: list[int]


class Loop:
  """The decoding loop; its state is a NestedMap."""

  def __init__(
    self,
    model: base_layer.BaseLayer,
    extend_step_fn: Callable[..., jax.Array],
    sampling: SampleSteps,
    rows: Rows,
    settings: SampleDecoderHParams,
    prefixes: Prefixes,
    keys: jax.Array | None,
    stream: ResultStream | None,
  ):
    """Takes what is decoded.

    Args:
      model: a bound layer, with decode states of R rows.
      extend_step_fn: (model, ids [R], segment_pos [R], state) -> [R, V].
      sampling: chooses tokens.
      rows: the settings of each row.
      settings: what they share.
      prefixes: what is continued.
      keys: typed keys [B * N], or None for those of the model.
      stream: gets results while the loop runs; or None.
    """
    self._model = model
    self._extend_step = extend_step_fn
    self._sampling = sampling
    self._rows = rows
    self._settings = settings
    self._prefixes = prefixes
    self._keys = keys
    self._stream = stream

  def run(
    self, transform_state_fn: Callable | None, *, early_exit: bool
  ) -> NestedMap:
    """Returns the last state.

    Args:
      transform_state_fn: lets decode states grow between stages.
      early_exit: whether the loop ends when all rows have ended; if not, it
        stacks what the model adds to its summaries and auxiliary losses.
    """
    prefixes, val = self._prefixes, self._initial_state()
    if not early_exit:
      val = self._run_all_steps(val)
    else:
      for number, steps in enumerate(prefixes.stages):
        if number and transform_state_fn is not None:
          more = steps - prefixes.stages[number - 1]
          transform_state_fn(self._model, state_alignment.pad_state_fn(more))
        val = nn.while_loop(
          functools.partial(self._goes_on, steps),
          self._step,
          self._model,
          val,
          split_rngs={base_layer.RANDOM: True},
          carry_variables=[base_layer.DECODE_CACHE],
        )
    if self._settings.optimize_eos:
      shift = prefixes.start + 1 if prefixes.are_read else 0
      val = state_alignment.collect_results_to_optimize_eos(val, shift)
    return val

  def _goes_on(self, steps: int, model: Any, val: NestedMap) -> jax.Array:
    del model
    end = min(self._prefixes.total - 1, self._prefixes.start + steps)
    return (val.step < end) & ~jnp.all(val.done)

  def _run_all_steps(self, val: NestedMap) -> NestedMap:
    model, prefixes = self._model, self._prefixes
    before = {name: model.variables.get(name, {}) for name in _STACKED}
    scan = nn.scan(
      lambda module, state, _: (self._step(module, state), ()),
      variable_axes={name: flax.core.lift.Out(0) for name in _STACKED},
      variable_carry=base_layer.DECODE_CACHE,
      variable_broadcast=nn.DenyList([*_STACKED, base_layer.DECODE_CACHE]),
      split_rngs={base_layer.RANDOM: True},
      length=prefixes.total - 1 - prefixes.start,
    )
    val, _ = scan(model, val, None)
    for name, values in before.items():
      if model.is_mutable_collection(name):
        # What was added before the loop is kept.
        merged = _merged(model.variables.get(name, {}), values)
        for key, value in merged.items():
          model.put_variable(name, key, value)
    return val

  def _initial_state(self) -> NestedMap:
    prefixes, total = self._prefixes, self._prefixes.total
    size = len(prefixes.ids)
    ids = jnp.zeros((size, total), jnp.int32)
    if prefixes.are_read:
      ids = jax.lax.dynamic_update_slice(
        ids, prefixes.ids.astype(ids.dtype), (0, 0)
      )
      segment_pos = prefixes.lengths - 1
    else:
      ids = ids.at[:, 0].set(prefixes.ids[:, 0])
      segment_pos = jnp.zeros(size, jnp.int32)
    return self._sampling.initial_state(
      NestedMap(
        start_step=jnp.asarray(prefixes.start, jnp.int32),
        step=jnp.asarray(prefixes.start, jnp.int32),
        segment_pos=segment_pos,
        output_ids=ids,
        done=jnp.zeros(size, bool),
        has_eos=jnp.zeros(size, bool),
        decode_lengths=jnp.full_like(prefixes.lengths, total),
      )
    )

  def _step(self, model: Any, val: NestedMap) -> NestedMap:
    """Reads the tokens at `step` and writes those behind."""
    val, prefixes = NestedMap(val), self._prefixes
    step = val.step
    logits = self._extend_step(
      model, val.output_ids[:, step], val.segment_pos, val
    )
    sampled = self._sampling.sample(model, val, logits, self._keys, step)
    model.add_summary('new_ids', sampled.output.new_ids)
    model.add_summary('sample_logits', sampled.output.logits)
    ids = sampled.ids
    if not prefixes.are_read:
      last = prefixes.ids.shape[1] - 1
      given = prefixes.ids[:, jnp.minimum(step + 1, last)]
      ids = jnp.where(step < prefixes.lengths - 1, given, ids)
    ids = jnp.where(val.done, 0, ids).astype(val.output_ids.dtype)
    val.output_ids = val.output_ids.at[:, step + 1].set(ids)
    self._sampling.record(val, sampled, ids, step + 1)
    self._end(val, ids)
    if self._stream is not None:
      self._stream.call_if_due(NestedMap(val, step=step + 1))
    val.step = step + 1
    return val

  def _end(self, val: NestedMap, ids: jax.Array):
    """Updates `done`, `has_eos`, `segment_pos` and `decode_lengths`."""
    prefixes, step = self._prefixes, val.step
    was_done, constraint = val.done, self._settings.sample_constraint
    has_eos = self._sampling.has_eos(val, ids)
    val.has_eos = val.has_eos | has_eos
    val.done = was_done | has_eos
    if prefixes.are_read:
      prefix_end = prefixes.start + 1
      lengths = prefixes.lengths + (step + 2 - prefix_end)
    else:
      # An end within the prefix is none.
      val.done = jnp.where(step < prefixes.lengths - 1, was_done, val.done)
      prefix_end = prefixes.lengths
      lengths = jnp.full_like(val.decode_lengths, step + 2)
    val.segment_pos = val.segment_pos + 1
    if constraint is not None:
      val.done = constraint(self._rows.enforced, val)
    val.done = val.done | (step + 2 - prefix_end >= self._rows.max_steps)
    val.decode_lengths = jnp.where(
      ~was_done & val.done, lengths, val.decode_lengths
    )

  def result(self, val: NestedMap) -> NestedMap:
    """Returns the results [B, N, ...] of the last state."""
    prefixes, result = self._prefixes, NestedMap(val)
    result.prefix_lengths = prefixes.lengths
    result.original_lengths = prefixes.original_lengths
    prefix_ids = prefixes.ids
    if prefixes.are_read:
      align = functools.partial(
        state_alignment.left_align_tensor,
        prefix_lengths=prefixes.lengths,
        max_prefix_len=prefixes.start + 1,
      )
      prefix_ids = align(prefix_ids)
      result.output_ids = align(result.output_ids)
      result.logprobs = align(result.logprobs, pad_value=NO_LOGPROB)
      if 'entropy' in result:
        result.entropy = align(result.entropy)
    is_prefix = jnp.arange(prefix_ids.shape[1]) < prefixes.lengths[:, None]
    result.prefix_ids = jnp.where(is_prefix, prefix_ids, 0)
    return self._sampling.results(result)


def _merged(first: Mapping, second: Mapping) -> dict:
  """Returns the union of two trees; a leaf of both is that of `first`."""
  merged = {**second, **first}
  for name in first.keys() & second.keys():
    if isinstance(first[name], Mapping):
      merged[name] = _merged(first[name], second[name])
  return merged
