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
import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.decoding import (
  decoder_utils,
  sample_decode,
  state_alignment,
)
from pax_compat.decoding.aligned_steps import NO_LOGPROB
from pax_compat.decoding.result_streams import ResultStream
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers

# What a step adds; the loop with a fixed number of steps stacks it.
_STACKED = (base_layer.SUMMARIES, base_layer.AUX_LOSS)


def split_batch_dim(
  x: jax.Array, batch_dim: int, num_samples: int
) -> jax.Array:
  """Returns `x` with the dimension `batch_dim` [R] as two, [B, N]."""
  shape = x.shape
  return x.reshape(*shape[:batch_dim], -1, num_samples, *shape[batch_dim + 1 :])


def both(x: jax.Array, num_samples: int) -> jax.Array:
  """Returns rows [R / 2, ...] for those without the condition, too."""
  grouped = split_batch_dim(x, 0, num_samples)
  return jnp.concatenate([grouped, grouped], axis=1).reshape(-1, *x.shape[1:])


class Rows(flax.struct.PyTreeNode):
  """What is decoded, of each of the R rows of the loop.

  Attributes:
    ids: [R, P], prefixes.
    lengths: [R], of the prefixes.
    original_lengths: [R], by their paddings.
    temperature: a number or [R, 1].
    top_p: a number, [R, 1] or None.
    top_k: a number, [R] or None.
    max_steps: [R], numbers of tokens after the prefix.
    stop: stop sequences [R, E], or None.
    keys: typed keys [R], or None for those of the model.
    scale: of guidance, to [B / 2, N, 1]: logits without the condition plus
      `scale` times the difference; None for none.
    num_candidates: [R], or None.
    enforced: [R], or None.
  """

  ids: jax.Array
  lengths: jax.Array
  original_lengths: jax.Array
  temperature: Any
  top_p: Any
  top_k: Any
  max_steps: jax.Array
  stop: jax.Array | None
  keys: jax.Array | None
  scale: Any
  num_candidates: jax.Array | None
  enforced: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Settings:
  """What all rows share; see the arguments of `pax_sampling.sample_decode`.

  Attributes:
    seq_len: T.
    num_samples: N.
    start: the position that the first step reads.
    stages: numbers of decoded tokens at which decode states grow, ascending.
    fprop_for_prefix: whether the prefixes have been read.
    eos_ids: tokens that end a sample.
    use_top_k_for_logprobs: whether log-probabilities are the sampler's.
    optimize_eos: ends each sample where that is most likely.
    has_entropy: whether the result has the entropy of each token.
    constraint: ends samples; or None.
  """

  seq_len: int
  num_samples: int
  start: int
  stages: list[int]
  fprop_for_prefix: bool
  eos_ids: tuple[int, ...]
  use_top_k_for_logprobs: bool
  optimize_eos: bool
  has_entropy: bool
  constraint: sample_decode.BaseSampleTerminationConstraint | None

  @classmethod
  def of(cls, given: Mapping[str, Any], stages: list[int]) -> 'Settings':
    """Returns the settings of the arguments of `sample_decode`."""
    eos = given['eos_id']
    if eos is None or isinstance(eos, jax.Array):
      if given['optimize_eos']:
        raise errors.UserError(
          'sample_decode: optimize_eos expects eos_id to be one or more tokens'
        )
      eos = ()
    is_read = given['fprop_for_prefix']
    return cls(
      seq_len=given['seq_len'],
      num_samples=given['num_samples'],
      start=given['max_prefix_len'] - 1 if is_read else 0,
      stages=stages,
      fprop_for_prefix=is_read,
      eos_ids=(eos,) if isinstance(eos, int) else tuple(eos),
      use_top_k_for_logprobs=given['use_top_k_for_logprobs'],
      optimize_eos=given['optimize_eos'],
      has_entropy=given['return_entropy_score'],
      constraint=given['sample_constraint'],
    )


class Loop:
  """The decoding loop; its state is a NestedMap."""

  def __init__(
    self,
    model: base_layer.BaseLayer,
    extend_step_fn: Callable[..., jax.Array],
    sampler: token_samplers.BaseNextTokenSampler,
    rows: Rows,
    settings: Settings,
    stream: ResultStream | None,
  ):
    """Takes what is decoded.

    Args:
      model: a bound layer, with decode states of R rows.
      extend_step_fn: (model, ids [R], segment_pos [R], state) -> [R, V].
      sampler: of the next token.
      rows: the rows.
      settings: what they share.
      stream: gets results while the loop runs; or None.
    """
    self._model = model
    self._extend_step = extend_step_fn
    self._sampler = sampler
    self._rows = rows
    self._settings = settings
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
    settings, val = self._settings, self._initial_state()
    if not early_exit:
      val = self._run_all_steps(val)
    else:
      for number, steps in enumerate(settings.stages):
        if number and transform_state_fn is not None:
          more = steps - settings.stages[number - 1]
          transform_state_fn(self._model, state_alignment.pad_state_fn(more))
        val = nn.while_loop(
          functools.partial(self._goes_on, steps),
          self._step,
          self._model,
          val,
          split_rngs={base_layer.RANDOM: True},
          carry_variables=[base_layer.DECODE_CACHE],
        )
    if settings.optimize_eos:
      shift = settings.start + 1 if settings.fprop_for_prefix else 0
      val = state_alignment.collect_results_to_optimize_eos(val, shift)
    return val

  def _goes_on(self, steps: int, model: Any, val: NestedMap) -> jax.Array:
    del model
    end = min(self._settings.seq_len - 1, self._settings.start + steps)
    return (val.step < end) & ~jnp.all(val.done)

  def _run_all_steps(self, val: NestedMap) -> NestedMap:
    model, settings = self._model, self._settings
    before = {name: model.variables.get(name, {}) for name in _STACKED}
    scan = nn.scan(
      lambda module, state, _: (self._step(module, state), ()),
      variable_axes={name: flax.core.lift.Out(0) for name in _STACKED},
      variable_carry=base_layer.DECODE_CACHE,
      variable_broadcast=nn.DenyList([*_STACKED, base_layer.DECODE_CACHE]),
      split_rngs={base_layer.RANDOM: True},
      length=settings.seq_len - 1 - settings.start,
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
    settings, rows = self._settings, self._rows
    size, total = len(rows.ids), settings.seq_len
    ids = jnp.zeros((size, total), jnp.int32)
    if settings.fprop_for_prefix:
      ids = jax.lax.dynamic_update_slice(
        ids, rows.ids.astype(ids.dtype), (0, 0)
      )
      segment_pos = rows.lengths - 1
    else:
      ids = ids.at[:, 0].set(rows.ids[:, 0])
      segment_pos = jnp.zeros(size, jnp.int32)
    val = NestedMap(
      start_step=jnp.asarray(settings.start, jnp.int32),
      step=jnp.asarray(settings.start, jnp.int32),
      segment_pos=segment_pos,
      output_ids=ids,
      done=jnp.zeros(size, bool),
      has_eos=jnp.zeros(size, bool),
      decode_lengths=jnp.full_like(rows.lengths, total),
      logprobs=jnp.full((size, total), NO_LOGPROB, jnp.float32),
    )
    if settings.optimize_eos:
      val.eos_ids = jnp.zeros_like(ids)
      val.eos_logprobs = jnp.full_like(val.logprobs, NO_LOGPROB)
    if settings.has_entropy:
      val.entropy = jnp.zeros_like(val.logprobs)
    if rows.num_candidates is not None:
      shape = (size, total, sample_decode.MAX_NUM_PER_TOKEN_LOGPROBS)
      val.top_candidate_ids = jnp.zeros(shape, jnp.int32)
      val.top_candidate_logprobs = jnp.ones(shape, jnp.float32)
    eos = settings.eos_ids if rows.stop is None else rows.stop
    return self._sampler.init_decode_loop_state(val, self._model, size, eos)

  def _step(self, model: Any, val: NestedMap) -> NestedMap:
    """Reads the tokens at `step` and writes those behind."""
    val, rows, settings = NestedMap(val), self._rows, self._settings
    step, was_done = val.step, val.done
    logits = self._extend_step(
      model, val.output_ids[:, step], val.segment_pos, val
    )
    if rows.scale is not None:
      logits = self._guided(logits)
    output = self._sample(model, val, logits)
    for name in output.keys() & val.keys():
      val[name] = output[name]
    model.add_summary('new_ids', output.new_ids)
    model.add_summary('sample_logits', output.logits)
    ids = output.new_ids
    if rows.scale is not None:
      ids = both(ids, settings.num_samples)
    if not settings.fprop_for_prefix:
      last = rows.ids.shape[1] - 1
      given = rows.ids[:, jnp.minimum(step + 1, last)]
      ids = jnp.where(step < rows.lengths - 1, given, ids)
    ids = jnp.where(was_done, 0, ids).astype(val.output_ids.dtype)
    val.output_ids = val.output_ids.at[:, step + 1].set(ids)
    self._end(val, ids)
    self._record(val, logits, ids, output, was_done)
    if self._stream is not None:
      self._stream.call_if_due(NestedMap(val, step=step + 1))
    val.step = step + 1
    return val

  def _guided(self, logits: jax.Array) -> jax.Array:
    """Returns the guided logits [R / 2, V]."""
    num = self._settings.num_samples
    grouped = split_batch_dim(logits, 0, 2 * num)
    with_condition, without = grouped[:, :num], grouped[:, num:]
    guided = without + self._rows.scale * (with_condition - without)
    return guided.reshape(-1, logits.shape[-1])

  def _sample(self, model: Any, val: NestedMap, logits: jax.Array) -> NestedMap:
    """Returns the output of the sampler."""
    rows = self._rows
    if self._settings.optimize_eos:
      masked = token_samplers.large_negative_number(logits.dtype)
      eos = jnp.asarray(self._settings.eos_ids)
      logits = logits.at[:, eos].set(masked)
    keys = rows.keys
    if keys is not None:
      steps = jnp.broadcast_to(val.step, keys.shape)
      keys = sample_streams.step_keys(keys, steps)
    return self._sampler(
      model,
      logits,
      rows.temperature,
      val,
      per_example_top_p=rows.top_p,
      per_example_top_k=rows.top_k,
      gumbel_prng_key=keys,
    )

  def _end(self, val: NestedMap, ids: jax.Array):
    """Updates `done`, `has_eos`, `segment_pos` and `decode_lengths`."""
    settings, rows, step = self._settings, self._rows, val.step
    was_done = val.done
    if rows.stop is not None:
      has_eos = decoder_utils.end_with_sequences(
        rows.stop, val.output_ids, step + 1
      )
    else:
      has_eos = decoder_utils.has_any_eos(ids, settings.eos_ids)
    val.has_eos = val.has_eos | has_eos
    val.done = was_done | has_eos
    if settings.fprop_for_prefix:
      prefix_end = settings.start + 1
      lengths = rows.lengths + (step + 2 - prefix_end)
    else:
      # An end within the prefix is none.
      val.done = jnp.where(step < rows.lengths - 1, was_done, val.done)
      prefix_end = rows.lengths
      lengths = jnp.full_like(val.decode_lengths, step + 2)
    val.segment_pos = val.segment_pos + 1
    if settings.constraint is not None:
      val.done = settings.constraint(rows.enforced, val)
    val.done = val.done | (step + 2 - prefix_end >= rows.max_steps)
    val.decode_lengths = jnp.where(
      ~was_done & val.done, lengths, val.decode_lengths
    )

  def _record(
    self,
    val: NestedMap,
    logits: jax.Array,
    ids: jax.Array,
    output: NestedMap,
    was_done: jax.Array,
  ):
    """Writes log-probabilities and what else was asked for."""
    settings, rows = self._settings, self._rows
    position = val.step + 1
    logprobs = jax.nn.log_softmax(logits.astype(jnp.float32))
    if rows.scale is not None:
      logprobs = both(logprobs, settings.num_samples)
    found = token_samplers.select(ids, logprobs)
    if settings.use_top_k_for_logprobs and 'logprobs_at_new_ids' in output:
      found = output.logprobs_at_new_ids
      if rows.scale is not None:
        found = both(found, settings.num_samples)
    found = jnp.where(was_done, NO_LOGPROB, found)
    val.logprobs = val.logprobs.at[:, position].set(found)
    if settings.optimize_eos:
      eos = jnp.asarray(settings.eos_ids, jnp.int32)
      best = eos[jnp.argmax(logprobs[:, eos], axis=-1)]
      val.eos_ids = val.eos_ids.at[:, position].set(best)
      val.eos_logprobs = val.eos_logprobs.at[:, position].set(
        token_samplers.select(best, logprobs)
      )
    if settings.has_entropy:
      entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
      val.entropy = val.entropy.at[:, position].set(entropy)
    if rows.num_candidates is not None:
      index = val.step - val.start_step
      values, tokens = sample_decode.candidates(logprobs, rows.num_candidates)
      val.top_candidate_logprobs = val.top_candidate_logprobs.at[:, index].set(
        values
      )
      val.top_candidate_ids = val.top_candidate_ids.at[:, index].set(tokens)

  def result(self, val: NestedMap) -> NestedMap:
    """Returns the results [B, N, ...] of the last state."""
    settings, rows = self._settings, self._rows
    working = ('start_step', 'step', 'done', 'has_eos', 'segment_pos')
    result = NestedMap({k: v for k, v in val.items() if k not in working})
    result.prefix_lengths = rows.lengths
    result.original_lengths = rows.original_lengths
    prefix_ids = rows.ids
    if settings.fprop_for_prefix:
      end = settings.start + 1
      align = functools.partial(
        state_alignment.left_align_tensor,
        prefix_lengths=rows.lengths,
        max_prefix_len=end,
      )
      prefix_ids = align(prefix_ids)
      result.output_ids = align(result.output_ids)
      result.logprobs = align(result.logprobs, pad_value=NO_LOGPROB)
      if settings.has_entropy:
        result.entropy = align(result.entropy)
    is_prefix = jnp.arange(prefix_ids.shape[1]) < rows.lengths[:, None]
    result.prefix_ids = jnp.where(is_prefix, prefix_ids, 0)
    result = self._sampler.post_process_decode_loop_state(result)
    num = settings.num_samples
    if rows.scale is None:
      return jax.tree.map(lambda x: split_batch_dim(x, 0, num), result)
    return jax.tree.map(
      lambda x: split_batch_dim(x, 0, 2 * num)[:, :num], result
    )


def _merged(first: Mapping, second: Mapping) -> dict:
  """Returns the union of two trees; a leaf of both is that of `first`."""
  merged = {**second, **first}
  for name in first.keys() & second.keys():
    if isinstance(first[name], Mapping):
      merged[name] = _merged(first[name], second[name])
  return merged
