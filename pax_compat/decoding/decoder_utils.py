"""Functions of hypotheses and stop sequences, shared by the decoders.

Shapes: B batch, K beam, T time, V vocabulary, E tokens of a stop sequence.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from pax_compat.nested_map import NestedMap

# A score below that of any hypothesis.
NO_SCORE = -1e9


@dataclasses.dataclass(frozen=True)
class StreamingResultCallback:
  """Gets results of sampling while it goes on.

  The functions are traced with the decoding loop: to reach the host they call
  `jax.experimental.io_callback`. Its calls may come out of order.

  Attributes:
    callback_fn: called with a NestedMap of what was decoded since its last
      call, I steps: `output_ids` [B, N, I]; `decode_lengths` [B, N], the number
      of them that the call is for; `scores` [B, N], the sum of their
      log-probabilities; `done` [B, N]; `prefix_lengths` [B], 0; `step` [], the
      number of steps before; and with `num_per_token_logprobs` of the batch
      `logprobs` [B, N, I], `top_candidate_ids` and `top_candidate_logprobs`
      [B, N, I, 5]. Tokens after the end of a sample are 0.
    interval_steps: I, the number of steps from one call to the next.
    init_fn: called with (B, N) before decoding; or None.
    done_fn: called after decoding; or None.
  """

  callback_fn: Callable[[NestedMap], None]
  interval_steps: int = 1
  init_fn: Callable[[Sequence[int]], None] | None = None
  done_fn: Callable[[], None] | None = None


def length_norm(t: jax.Array, length_norm_alpha: float) -> jax.Array:
  """Returns ((t + 5) / 5) ** alpha, which divides the score of `t` tokens."""
  t = jnp.asarray(t)
  return ((t.astype(jnp.float32) + 5.0) / 5.0) ** length_norm_alpha


def two_stage_topk(
  logits: jax.Array,
  hyp_scores: jax.Array,
  terminal_ids: Sequence[int],
  tokens_per_beam: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Chooses the best continuations: of each hypothesis, then of all.

  Args:
    logits: log-probabilities of the next token, [B, K, V] or [B * K, V].
    hyp_scores: [B, K], scores so far.
    terminal_ids: tokens that are not continued.
    tokens_per_beam: number of tokens of each hypothesis; None for K.

  Returns:
    Scores and tokens of the first stage [B, K * tokens_per_beam]; and scores
    and indices into the first stage of the best [B, K].
  """
  rows, beams = hyp_scores.shape
  tokens = beams if tokens_per_beam is None else tokens_per_beam
  values, ids = jax.lax.top_k(
    logits.reshape(rows, beams, logits.shape[-1]), tokens
  )
  values += hyp_scores[..., None]
  for token in terminal_ids:
    values += NO_SCORE * (ids == token)
  values, ids = values.reshape(rows, -1), ids.reshape(rows, -1)
  best, indices = jax.lax.top_k(values, beams)
  return values, ids, best, indices


def gather_output_id(ids: jax.Array, indices: jax.Array) -> jax.Array:
  """Returns the tokens [B, K] at `indices` [B, K] of `ids` [B, N]."""
  return jnp.take_along_axis(ids, indices, axis=1).astype(jnp.int32)


def gather_logprobs(
  logprobs: jax.Array, hyp_ids: jax.Array, ids: jax.Array
) -> jax.Array:
  """Returns the log-probability [B, K] of tokens.

  Args:
    logprobs: [B, K, V].
    hyp_ids: [B, K], the hypothesis that a token continues.
    ids: [B, K], the tokens.
  """
  of_hyps = jnp.take_along_axis(logprobs, hyp_ids[..., None], axis=1)
  return jnp.take_along_axis(of_hyps, ids[..., None], axis=2)[..., 0]


def token_logprobs(logits: jax.Array, ids: jax.Array) -> jax.Array:
  """Returns the log-probability [R] of a token `ids` [R] of `logits` [R, V].

  Unlike a log-softmax, it does not write R x V numbers.
  """
  chosen = jnp.take_along_axis(logits, ids[:, None].astype(jnp.int32), axis=1)
  return chosen[:, 0] - jax.nn.logsumexp(logits, axis=1)


def has_any_eos(ids: jax.Array, eos_ids: int | Sequence[int]) -> jax.Array:
  """Returns whether each token [...] is one of `eos_ids`."""
  return jnp.isin(ids, jnp.atleast_1d(jnp.asarray(eos_ids, jnp.int32)))


def end_with_sequences(
  stop_sequences: jax.Array, output_ids: jax.Array, decode_step: jax.Array
) -> jax.Array:
  """Returns whether each row ends with its stop sequence at a step, [B].

  Args:
    stop_sequences: [B, E], padded with 0 at the left; 0 matches any token.
    output_ids: [B, T].
    decode_step: [], index of the last token.
  """
  size = stop_sequences.shape[1]
  padded = jnp.pad(output_ids, ((0, 0), (size, 0)))
  last = jax.lax.dynamic_slice_in_dim(padded, decode_step + 1, size, axis=1)
  return jnp.all((last == stop_sequences) | (stop_sequences == 0), axis=1)


def best_end(
  logprobs: jax.Array, eos_logprobs: jax.Array, is_decoded: jax.Array
) -> jax.Array:
  """Returns the position [B] at which ending is most likely.

  Args:
    logprobs: [B, T], of the decoded tokens.
    eos_logprobs: [B, T], of an end instead of each.
    is_decoded: [B, T], whether there is a decoded token.
  """
  before = jnp.cumsum(jnp.where(is_decoded, logprobs, 0), axis=1)
  before = jnp.pad(before, ((0, 0), (1, 0)))[:, :-1]
  return jnp.argmax(
    jnp.where(is_decoded, before + eos_logprobs, NO_SCORE), axis=1
  )
