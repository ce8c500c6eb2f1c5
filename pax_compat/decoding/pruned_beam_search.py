"""Beam search with pruning and a coverage penalty, as of GNMT and Lingvo.

https://arxiv.org/abs/1609.08144, section 7. Follows Lingvo's
`BeamSearchHelper`: a hypothesis may end only where its end is likely enough,
and a row's search ends as soon as no hypothesis left in the beam can compete
with the best one that has ended.

Shapes: B rows, K hypotheses of a row, C = K + 1 continuations of each, V
vocabulary, S source time.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.decoder_hparams import PrunedBeamSearchHParams
from pax_compat.decoding import decoder_utils
from pax_compat.decoding.aligned_steps import AlignedSteps
from pax_compat.decoding.beam_search import Search, shuffle
from pax_compat.decoding.cached_network import CachedNetwork, Reordered, States
from pax_compat.decoding.decoder_utils import NO_SCORE
from pax_compat.nested_map import NestedMap

# The name of a network's decode state [R, S]: the sum of its attention to each
# source position, over all steps.
COVERAGE = 'source_coverage'


class PrunedSearch(Search):
  """The loop; see `Search`."""

  def __init__(
    self,
    network: CachedNetwork,
    settings: PrunedBeamSearchHParams,
    steps: AlignedSteps,
    *,
    rows: jax.Array | None = None,
    source_paddings: jax.Array | None = None,
  ):
    """Takes a network.

    Args:
      network: computes logits; with a coverage penalty it has the decode state
        `COVERAGE`.
      settings: of the search.
      steps: of the network.
      rows: [B], 0 for padding rows, for which nothing is searched; None if
        there are none.
      source_paddings: [B, S], for the coverage penalty.
    """
    super().__init__(network, settings, steps)
    self._rows = rows
    self._source_paddings = source_paddings

  def _initial_state(self) -> NestedMap:
    val = super()._initial_state()
    rows = len(val.done)
    if self._rows is not None:
      val.done = jnp.broadcast_to(self._rows[:, None] == 0, val.done.shape)
    val.best = jnp.full([rows], -1e36, jnp.float32)
    val.num_ended = jnp.zeros([rows], jnp.int32)
    lengths = self._steps.repeat(self._steps.prefix.lengths)
    val.end_lengths = lengths.reshape(val.end_lengths.shape)
    return val

  def _extend(
    self, val: NestedMap, states: States, logits: jax.Array
  ) -> tuple[NestedMap, Reordered]:
    """Extends the hypotheses by their next tokens; see `Search._extend`."""
    val = NestedMap(val)
    position = val.step + 1
    logprobs = jax.nn.log_softmax(logits)
    logprobs = logprobs.reshape(*val.hyp_scores.shape, logits.shape[-1])
    totals = val.hyp_scores[..., None] + logprobs
    scores, tokens = self._continuations(totals, position)
    self._end_hypotheses(val, states, logprobs, scores, tokens, position)
    self._choose(val, logprobs, scores, tokens, position)
    val.step = position
    return val, self.reordered(states, val.pop('sources'))

  def _continuations(
    self, totals: jax.Array, position: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the scores and tokens [B, K, C] of the best continuations.

    Args:
      totals: [B, K, V], the scores of all.
      position: [], of the tokens.
    """
    best = jax.lax.top_k(totals, self._beams + 1)
    # XLA would join slices of it with its own, and sort all V.
    scores, tokens = jax.lax.optimization_barrier(best)
    forced = self._is_last_forced(position)
    if self._settings.force_eos_in_top_k:
      forced = jnp.ones_like(forced)
    [eos] = self._eos
    lacks = forced & ~jnp.any(tokens == eos, axis=-1)
    return (
      scores.at[..., -1].set(
        jnp.where(lacks, totals[..., eos], scores[..., -1])
      ),
      tokens.at[..., -1].set(jnp.where(lacks, eos, tokens[..., -1])),
    )

  def _is_last_forced(self, position: jax.Array) -> jax.Array:
    """Whether hypotheses end at this position [] in any case."""
    is_last = position == self._steps.total - 1
    return is_last & self._settings.force_eos_in_last_step

  def _end_hypotheses(self, val, states, logprobs, scores, tokens, position):
    """Ends hypotheses whose end is likely enough; keeps the best of all."""
    settings = self._settings
    [eos] = self._eos
    local = logprobs[..., eos]
    total = val.hyp_scores + local
    is_likely = total > scores[..., 0] - settings.valid_eos_max_logit_delta
    is_likely &= local > settings.local_eos_threshold
    # All hypotheses but the first one are copies of it at first.
    ends = jnp.any(tokens == eos, axis=-1) & (val.hyp_scores > NO_SCORE)
    ends &= is_likely | self._is_last_forced(position)
    if settings.terminate_beams_independently:
      ends &= ~val.done
    norm = decoder_utils.length_norm(
      position + 1 - self._steps.first, settings.length_norm_alpha
    )
    score = total / norm + self._coverage_penalty(states, total.shape)
    self.keep_ended(
      val,
      position,
      tokens=jnp.where(ends, eos, 0),
      scores=jnp.where(ends, score, NO_SCORE),
      logprobs=local,
    )
    best = jnp.max(jnp.where(ends, total, -jnp.inf), axis=-1)
    val.best = jnp.maximum(val.best, best)
    val.num_ended += jnp.sum(ends, axis=-1)

  def _coverage_penalty(self, states: States, shape) -> jax.Array | float:
    """Returns what is added to the scores [B, K] of ended hypotheses."""
    settings = self._settings
    if not settings.coverage_penalty:
      return 0.0
    coverage = self._network.state(states, COVERAGE)
    if coverage is None or self._source_paddings is None:
      raise errors.UserError(
        f'coverage_penalty is {settings.coverage_penalty}; expected 0: the'
        f' {type(self._network.module).__name__} does not return its attention'
        ' to the source'
      )
    ratio = settings.target_seq_length_ratio
    covered = jnp.log(jnp.clip(coverage / ratio, 0.001, 0.5))
    covered = covered.reshape(*shape, -1)  # [B, K, S]
    is_source = (self._source_paddings == 0)[:, None]
    total = jnp.sum(jnp.where(is_source, covered, 0.0), axis=-1)
    return ratio * settings.coverage_penalty * total

  def _choose(self, val, logprobs, scores, tokens, position):
    """Keeps the best continuations that do not end, by score and token."""
    [eos] = self._eos
    shape = scores.shape
    flat = shape[0], shape[1] * shape[2]
    sources = jnp.broadcast_to(jnp.arange(shape[1])[:, None], shape)
    ordered = jax.lax.sort(
      (
        jnp.where(tokens == eos, jnp.inf, -scores).reshape(flat),
        tokens.reshape(flat),
        sources.reshape(flat),
      ),
      num_keys=3,
    )
    negated, ids, hyps = (x[:, : self._beams] for x in ordered)
    found = decoder_utils.gather_logprobs(logprobs, hyps, ids)
    val.hyp_scores, val.sources = -negated, hyps
    for name, new in (('output_ids', ids), ('logprobs', found)):
      val[name] = shuffle(val[name], hyps).at[:, :, position].set(new)
    gap = self._settings.max_score_gap
    is_done = jnp.all(val.hyp_scores <= val.best[:, None] - gap, axis=-1)
    if self._settings.ensure_full_beam:
      is_done &= val.num_ended >= self._beams
    val.done |= is_done[:, None]
