"""Hypotheses of a beam search as arrays: Pax's `beam_search` helpers.

Shapes: B rows, K beams, M new hypotheses, T time.
"""

import jax
import jax.numpy as jnp

from pax_compat.decoding import beam_search

# Tokens [B, K, T], lengths [B, K], scores [B, K], log-probabilities [B, K, T].
GlobalBeam = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def broadcast_beam_dim(
  x: jax.Array, beam_dim: int, beam_size: int
) -> jax.Array:
  """Returns `x` repeated along a new dimension of beams.

  Args:
    x: [B, ...].
    beam_dim: index of the new dimension.
    beam_size: K.
  """
  return jnp.repeat(jnp.expand_dims(x, beam_dim), beam_size, axis=beam_dim)


def shuffle_state(
  x: jax.Array, hyp_id: jax.Array, use_one_hot_matmul: bool = False
) -> jax.Array:
  """Returns a decode state [B, K, ...] with other beams.

  Args:
    x: the state; one of less than two dimensions is kept.
    hyp_id: [B, K], the beams.
    use_one_hot_matmul: no effect.
  """
  del use_one_hot_matmul
  return x if jnp.ndim(x) < 2 else beam_search.shuffle(x, hyp_id)


def _best(end_hyps, cur_hyps, score: int) -> tuple:
  """Returns the K best of tuples of arrays [B, ...] by one of them."""
  fields = [f'{i}' for i in range(len(end_hyps))]
  fields[score] = 'scores'
  ended, new = (
    dict(zip(fields, hyps, strict=True)) for hyps in (end_hyps, cur_hyps)
  )
  best = beam_search.update_ended(ended, new)
  return tuple(best[name] for name in fields)


def update_global_beam(
  end_hyps: GlobalBeam, cur_hyps: GlobalBeam
) -> GlobalBeam:
  """Returns the K best of ended hypotheses and M new ones."""
  return _best(end_hyps, cur_hyps, score=2)


def update_topk_scores_with_eos(
  end_hyps: tuple[jax.Array, jax.Array, jax.Array],
  cur_hyps: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the K best of ended hypotheses and M new ones.

  Args:
    end_hyps: masks [B, K, T * K] of `update_beam_mask`, scores [B, K], and
      normalized scores [B, K], which decide.
    cur_hyps: likewise, [B, M, ...].
  """
  return _best(end_hyps, cur_hyps, score=2)


def update_beam_mask(
  beam_mask: jax.Array, hyp_id: jax.Array, time_step: jax.Array | int | None
) -> jax.Array:
  """Returns which token of which step and beam a hypothesis consists of.

  Args:
    beam_mask: [B, K, T * K], 1 for the tokens of each beam, else 0.
    hyp_id: [B, K], the beams that are continued.
    time_step: the step whose tokens are added, one to each beam; None for none.
  """
  mask = beam_search.shuffle(beam_mask, jnp.asarray(hyp_id).astype(int))
  if time_step is None:
    return mask
  beams, size = mask.shape[1:]
  own = jnp.arange(beams)[:, None] + time_step * beams
  return mask + (own == jnp.arange(size)).astype(mask.dtype)


def get_final_output_ids(
  beam_mask: jax.Array, output_ids: jax.Array
) -> jax.Array:
  """Returns the tokens [B, K, T] of hypotheses.

  Args:
    beam_mask: see `update_beam_mask`.
    output_ids: [B, K, T], the tokens of each step in each beam.
  """
  rows, beams, length = output_ids.shape
  mask = beam_mask.reshape(rows, -1, length, beams)
  return jnp.einsum('bkt,bntk->bnt', output_ids, mask).astype(jnp.int32)
