"""Sequences and decode states, moved along time."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.decoding import state_alignment
from pax_compat.nested_map import NestedMap

IDS = jnp.array([[1, 2, 0, 0], [3, 4, 5, 0]])
STATE = jnp.arange(1, 17).reshape(2, 4, 2)


def test_to_the_right_and_back():
  lengths = jnp.array([2, 3])
  right = state_alignment.right_align_tensors(IDS, lengths)
  assert right.tolist() == [[0, 0, 1, 2], [0, 3, 4, 5]]
  left = state_alignment.left_align_tensor(right, lengths, 4)
  np.testing.assert_array_equal(left, IDS)
  moved = state_alignment.right_align_state_fn(lengths)(STATE, 0, 1)
  np.testing.assert_array_equal(moved[0, 2:], STATE[0, :2])
  kept = state_alignment.left_align_kv_cache(moved, lengths, 4, batch_size=1)
  np.testing.assert_array_equal(kept[0, :2], STATE[0, :2])
  np.testing.assert_array_equal(kept[1], moved[1])
  with pytest.raises(errors.UserError, match='align_dim is 2; expected 1 to 1'):
    state_alignment.right_align_tensors(IDS, lengths, 2)


def test_states_by_their_dimensions():
  padded = state_alignment.pad_state_fn(1)(STATE, 0, 1)
  assert padded.shape == (2, 5, 2)
  taken = state_alignment.slice_state_fn(1, -1)(padded, 0, 1)
  np.testing.assert_array_equal(taken, STATE[:, 1:])
  repeated = state_alignment.batch_broadcast_state_fn(2)(STATE, 0, 1)
  np.testing.assert_array_equal(repeated[1], STATE[0])
  for change in (
    state_alignment.pad_state_fn(1),
    state_alignment.slice_state_fn(1, 2),
    state_alignment.batch_broadcast_state_fn(2),
  ):
    assert change(jnp.zeros([]), -1, -1).shape == ()


def test_suffixes():
  joined = state_alignment.concat_suffix_and_left_align(
    jnp.array([[0, 1, 2, 0]]),
    jnp.array([[7], [8]]),
    *(jnp.array([3]), jnp.array([1]), 2, 1, 2),
    pad_value=0,
  )
  assert joined.tolist() == [[[[1, 2, 7, 0, 0]], [[1, 2, 8, 0, 0]]]]


def test_the_first_stop_sequence_among_new_tokens():
  stops = jnp.broadcast_to(jnp.array([[0, 4], [4, 5]]), (2, 2, 2))
  first = state_alignment.find_first_new_stop_seq_match(
    jnp.array([1, 2]), 2, stops, jnp.array([[1, 2, 3, 9], [3, 4, 5, 4]])
  )
  assert first.tolist() == [2, 0]


def test_rows_end_where_that_is_most_likely():
  result = state_alignment.collect_results_to_optimize_eos(
    NestedMap(
      output_ids=jnp.array([[4, 3, 5]]),
      logprobs=jnp.array([[-0.2, -0.3, -0.4]]),
      eos_ids=jnp.array([[1, 1, 1]]),
      eos_logprobs=jnp.array([[0.0, -0.1, -5.0]]),
      done=jnp.array([False]),
      has_eos=jnp.array([False]),
      start_step=0,
    )
  )
  assert result.output_ids.tolist() == [[4, 1, 0]]
  np.testing.assert_allclose(result.logprobs, [[-0.2, -0.1, 1]])
  assert result.decode_lengths.tolist() == [2]
  assert result.done.all() and 'eos_ids' not in result


def test_prefixes_to_the_right():
  ids, paddings = state_alignment.right_align_prefix_ids(
    IDS, jnp.array([2, 3]), jnp.float32
  )
  assert ids.tolist() == [[0, 0, 1, 2], [0, 3, 4, 5]]
  assert paddings.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
  assert paddings.dtype == jnp.float32
