"""Sequences and decode states, moved along time: Pax's `decoder_utils`.

Shapes: B rows, T time, E tokens of a stop sequence, Q stop sequences.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.decoding import decoder_utils
from pax_compat.layer_core.decode_states import StateFn, repeat_rows
from pax_compat.nested_map import NestedMap


def pad_state_fn(state_padding_size: int) -> StateFn:
  """Returns a function that pads states by a number of positions."""

  def pad(x, batch_dim, time_dim):
    del batch_dim
    if time_dim < 0:
      return x
    pads = [(0, 0)] * x.ndim
    pads[time_dim] = (0, state_padding_size)
    return jnp.pad(x, pads)

  return pad


def slice_state_fn(slice_start: int, slice_limit: int) -> StateFn:
  """Returns a function that takes positions of states, as a Python slice."""

  def take(x, batch_dim, time_dim):
    del batch_dim
    if time_dim < 0:
      return x
    first, end, _ = slice(slice_start, slice_limit).indices(x.shape[time_dim])
    return jax.lax.slice_in_dim(x, first, end, axis=time_dim)

  return take


def batch_broadcast_state_fn(multiplier: int) -> StateFn:
  """Returns a function that repeats each row of states."""
  return repeat_rows(multiplier)


def _shifted(
  x: jax.Array, offsets: jax.Array, axis: int, pad_value: float
) -> jax.Array:
  """Returns each row of `x` from its offset [B] on, padded at the end.

  Args:
    x: [B, ...].
    offsets: negative ones pad at the beginning.
    axis: along which to shift, 1 or more.
    pad_value: of positions outside.
  """
  size = x.shape[axis]
  index = offsets[:, None] + jnp.arange(size)
  shape = [1] * x.ndim
  shape[0], shape[axis] = index.shape
  index = index.reshape(shape)
  found = jnp.take_along_axis(x, jnp.clip(index, 0, size - 1), axis=axis)
  inside = (0 <= index) & (index < size)
  return jnp.where(inside, found, jnp.asarray(pad_value, x.dtype))


def right_align_tensors(
  x: jax.Array, lengths: jax.Array, align_dim: int = 1
) -> jax.Array:
  """Returns left-aligned rows aligned to the right, with zeros before.

  >>> print(right_align_tensors(jnp.array([[5, 3, 0, 0]]), jnp.array([2])))
  [[0 0 5 3]]

  Args:
    x: [B, ...].
    lengths: [B], lengths of the rows.
    align_dim: the dimension of time.

  Raises:
    UserError: the dimension does not exist.
  """
  if not 0 < align_dim < x.ndim:
    raise errors.UserError(
      f'right_align_tensors: align_dim is {align_dim}; expected 1 to'
      f' {x.ndim - 1}'
    )
  return _shifted(x, lengths - x.shape[align_dim], align_dim, 0)


def right_align_state_fn(seq_lengths: jax.Array) -> StateFn:
  """Returns a function that aligns states to the right."""

  def align(x, batch_dim, time_dim):
    del batch_dim
    return x if time_dim < 0 else right_align_tensors(x, seq_lengths, time_dim)

  return align


def right_align_prefix_ids(
  prefix_ids: jax.Array, prefix_lengths: jax.Array, paddings_dtype: Any
) -> tuple[jax.Array, jax.Array]:
  """Returns prefixes [B, T] aligned to the right, and their paddings [B, T].

  Args:
    prefix_ids: [B, T], aligned to the left.
    prefix_lengths: [B].
    paddings_dtype: dtype of the paddings.
  """
  size = prefix_ids.shape[1]
  paddings = jnp.arange(size) < size - prefix_lengths[:, None]
  ids = right_align_tensors(prefix_ids, prefix_lengths)
  return ids, paddings.astype(paddings_dtype)


def right_align_segment_position(
  lengths: jax.Array, max_length: int
) -> jax.Array:
  """Returns positions [B, T] of rows that are aligned to the right.

  >>> print(right_align_segment_position(jnp.array([2, 4]), 4))
  [[0 0 0 1]
   [0 1 2 3]]

  Args:
    lengths: [B], lengths of the rows.
    max_length: T.
  """
  first = max_length - lengths[:, None]
  return jnp.maximum(jnp.arange(max_length) - first, 0)


def left_align_tensor(
  x: jax.Array,
  prefix_lengths: jax.Array,
  max_prefix_len: int,
  pad_value: float = 0.0,
) -> jax.Array:
  """Returns rows whose prefixes end at one position, aligned to the left.

  >>> print(left_align_tensor(jnp.array([[0, 7, 8, 9]]), jnp.array([1]), 2))
  [[7 8 9 0]]

  Args:
    x: [B, T].
    prefix_lengths: [B].
    max_prefix_len: the position at which the prefixes end.
    pad_value: of positions at the end.

  Raises:
    UserError: `x` has other dimensions.
  """
  if x.ndim != 2:
    raise errors.UserError(
      f'left_align_tensor: the shape is {x.shape}; expected two dimensions'
    )
  return _shifted(x, max_prefix_len - prefix_lengths, 1, pad_value)


def left_align_kv_cache(
  x: jax.Array,
  prefix_lengths: jax.Array,
  max_prefix_len: int,
  pad_value: float = 0.0,
  batch_size: int = 1,
) -> jax.Array:
  """Returns a cache [B, T, N, H] or [B, T, D], aligned to the left.

  Args:
    x: the cache.
    prefix_lengths: see `left_align_tensor`.
    max_prefix_len: likewise.
    pad_value: likewise.
    batch_size: the number of rows that are aligned; others are kept.
  """
  moved = _shifted(x, max_prefix_len - prefix_lengths, 1, pad_value)
  return x.at[:batch_size].set(moved[:batch_size])


def concat_suffix_and_left_align(
  decoded_tensors: jax.Array,
  suffix_tensors: jax.Array,
  decode_end_indices: jax.Array,
  prefix_lengths: jax.Array,
  max_prefix_len: int,
  num_samples: int,
  num_suffix: int,
  pad_value: float,
) -> jax.Array:
  """Appends suffixes to decoded rows, and aligns them to the left.

  Args:
    decoded_tensors: [B * samples, T].
    suffix_tensors: [B * samples * suffixes, S].
    decode_end_indices: [B * samples], where a suffix begins.
    prefix_lengths: [B * samples]; see `left_align_tensor`.
    max_prefix_len: likewise.
    num_samples: samples of an example.
    num_suffix: suffixes of a sample.
    pad_value: of positions at the end.

  Returns:
    [B, suffixes, samples, T + S].
  """
  size = suffix_tensors.shape[1]
  rows = jnp.pad(
    jnp.repeat(decoded_tensors, num_suffix, axis=0),
    ((0, 0), (0, size)),
    constant_values=jnp.asarray(pad_value, decoded_tensors.dtype),
  )
  ends = jnp.repeat(decode_end_indices, num_suffix, axis=0)
  update = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))
  joined = left_align_tensor(
    update(rows, suffix_tensors, ends, 0),
    jnp.repeat(prefix_lengths, num_suffix, axis=0),
    max_prefix_len,
    pad_value,
  )
  joined = joined.reshape(-1, num_samples, num_suffix, joined.shape[1])
  return jnp.swapaxes(joined, 1, 2)


def end_with_any_sequence_any_position(
  stop_sequence: jax.Array, output_ids: jax.Array, decode_step: jax.Array
) -> jax.Array:
  """Returns where each row ends with which of its stop sequences.

  Args:
    stop_sequence: [B, Q, E], padded with 0 at the left, which matches any.
    output_ids: [B, T].
    decode_step: [B, P], the positions of the last token.

  Returns:
    [B, P, Q], bool.
  """

  def of_row(stops, ids, steps):
    def at(step):
      rows = jnp.broadcast_to(ids, (len(stops), *ids.shape))
      return decoder_utils.end_with_sequences(stops, rows, step)

    return jax.vmap(at)(steps)

  return jax.vmap(of_row)(
    *map(jnp.asarray, (stop_sequence, output_ids, decode_step))
  )


def find_first_new_stop_seq_match(
  first_new_decode_idx: jax.Array,
  num_new_tokens: int,
  stop_sequences: jax.Array,
  sequences: jax.Array,
) -> jax.Array:
  """Returns which new token ends a stop sequence first, [B].

  Args:
    first_new_decode_idx: [B], position of the first new token.
    num_new_tokens: number of new tokens; also the result without a match.
    stop_sequences: [B, Q, E]; see `end_with_any_sequence_any_position`.
    sequences: [B, T].
  """
  steps = first_new_decode_idx[:, None] + jnp.arange(num_new_tokens)
  ends = end_with_any_sequence_any_position(stop_sequences, sequences, steps)
  matched = jnp.any(ends, axis=-1)
  first = jnp.argmax(matched, axis=1)
  return jnp.where(jnp.any(matched, axis=1), first, num_new_tokens)


def coerce_to_expanded_extend_step_fn(extend_step_fn: Callable) -> Callable:
  """Returns a function of (model, ids, segment_pos, decode state).

  Args:
    extend_step_fn: such a function, or one without the last argument.
  """
  if len(inspect.signature(extend_step_fn).parameters) == 4:
    return extend_step_fn

  def expanded(model, extend_ids, segment_pos, decode_loop_state):
    del decode_loop_state
    return extend_step_fn(model, extend_ids, segment_pos)

  return expanded


def collect_results_to_optimize_eos(
  result: NestedMap, decode_length_shift: int = 0
) -> NestedMap:
  """Ends each row where that is most likely.

  Args:
    result: `output_ids`, `logprobs`, `eos_ids`, `eos_logprobs` [B, T], `done`,
      `has_eos` [B] and `start_step`, the last position of the prefix.
    decode_length_shift: subtracted from `decode_lengths`.

  Returns:
    The result with tokens, log-probabilities (1 after the end) and lengths of
    the rows, without `eos_ids` and `eos_logprobs`.
  """
  others: dict[str, Any] = {
    name: value
    for name, value in result.items()
    if name not in ('eos_ids', 'eos_logprobs')
  }
  index = jnp.arange(result.output_ids.shape[1])
  after_start = jnp.broadcast_to(
    index > result.start_step, result.output_ids.shape
  )
  before = jnp.cumsum(result.logprobs, axis=1)
  before = jnp.where(after_start, before, 0)
  before = jnp.pad(before, ((0, 0), (1, 0)))[:, :-1]
  scores = before + result.eos_logprobs
  scores = jnp.where(after_start, scores, decoder_utils.NO_SCORE)
  end = jnp.argmax(scores, axis=1)[:, None]

  def ended(values, ends, beyond):
    values = jnp.where(index == end, ends, values)
    return jnp.where(index > end, jnp.asarray(beyond, values.dtype), values)

  return NestedMap(
    others,
    output_ids=ended(result.output_ids, result.eos_ids, 0),
    logprobs=ended(result.logprobs, result.eos_logprobs, 1),
    decode_lengths=end[:, 0] + 1 - decode_length_shift,
    done=jnp.ones_like(result.done),
    has_eos=jnp.ones_like(result.has_eos),
  )
