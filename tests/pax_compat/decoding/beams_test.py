"""Hypotheses of a beam search as arrays."""

import jax.numpy as jnp
import numpy as np

from pax_compat.decoding import beams


def test_states_of_beams():
  x = beams.broadcast_beam_dim(jnp.array([[1, 2], [3, 4]]), 1, 2)
  assert x.tolist() == [[[1, 2], [1, 2]], [[3, 4], [3, 4]]]
  state = jnp.array([[1, 2, 3]])
  shuffled = beams.shuffle_state(state, jnp.array([[2, 0, 0]]))
  assert shuffled.tolist() == [[3, 1, 1]]
  assert beams.shuffle_state(jnp.array([5]), jnp.array([[0]])).tolist() == [5]


def _hypotheses(ids, scores):
  ids = jnp.array([ids])
  return ids, jnp.sum(ids > 0, -1), jnp.array([scores]), -1.0 * ids


def test_the_best_of_ended_and_new_hypotheses():
  ended = _hypotheses([[1, 2, 0], [3, 0, 0]], [2.0, 0.0])
  new = _hypotheses([[4, 5, 6], [7, 0, 0]], [3.0, 1.0])
  ids, lengths, scores, logprobs = beams.update_global_beam(ended, new)
  assert ids.tolist() == [[[4, 5, 6], [1, 2, 0]]]
  assert (lengths.tolist(), scores.tolist()) == ([[3, 2]], [[3, 2]])
  np.testing.assert_array_equal(logprobs, -ids)
  mask, raw, best = beams.update_topk_scores_with_eos(
    (ended[0], ended[2], ended[2]), (new[0], new[2] + 9, new[2])
  )
  assert mask.tolist() == ids.tolist()
  assert (raw.tolist(), best.tolist()) == ([[12, 2]], [[3, 2]])


def test_tokens_by_the_masks_of_beams():
  tokens = jnp.array([[[5, 7], [6, 8]]])  # [B, K, T]
  mask = jnp.zeros([1, 2, 4])
  mask = beams.update_beam_mask(mask, jnp.array([[0, 1]]), 0)
  # Both beams continue the second one.
  mask = beams.update_beam_mask(mask, jnp.array([[1, 1]]), 1)
  found = beams.get_final_output_ids(mask, tokens)
  assert found.tolist() == [[[6, 7], [6, 8]]]
  swapped = beams.update_beam_mask(mask, jnp.array([[1, 0]]), None)
  found = beams.get_final_output_ids(swapped, tokens)
  assert found.tolist() == [[[6, 8], [6, 7]]]
