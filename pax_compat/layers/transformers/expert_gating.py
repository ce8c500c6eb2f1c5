"""Which experts compute which tokens.

Tokens come in groups, and each group deals its tokens out by itself: an expert
has so many slots for the tokens of a group, its capacity, and what finds no
slot is not computed by it. Top-2 gating is algorithm 2 of
https://arxiv.org/abs/2006.16668; in expert choice, each expert picks tokens,
https://arxiv.org/abs/2202.09368.

Shapes: G groups, S tokens of a group, E experts, C slots of an expert for a
group. Gates are worked out in float32, whatever the logits are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat import errors

SECOND_EXPERT_POLICIES = ('all', 'sampling', 'random')


class Gating(NamedTuple):
  """How the tokens are dealt out.

  Attributes:
    combine: [G, S, E, C], what the output of a slot counts for a token; 0
      where the token is not in that slot.
    dispatch: [G, S, E, C], 1 where the token is in that slot, else 0.
    aux_loss: [], small where the tokens are spread evenly over the experts.
    summaries: scalars that tell how it went, by name.
  """

  combine: jax.Array
  dispatch: jax.Array
  aux_loss: jax.Array
  summaries: dict[str, jax.Array]


def expert_capacity(
  group_size: int,
  num_experts: int,
  *,
  capacity_dim: int | None,
  capacity_factor: float | None,
) -> int:
  """Returns C.

  Args:
    group_size: S.
    num_experts: E.
    capacity_dim: C, at least; None and 0 leave it to the factor.
    capacity_factor: the slots of all experts together over the tokens of the
      group, at least. Where that asks for more than `capacity_dim`, C is what
      it asks for, rounded up to a multiple of 4. It asks for 4 where there are
      hardly any tokens. None and 0 ask for nothing.

  Raises:
    UserError: neither of the two is set.
  """
  if not capacity_dim and not capacity_factor:
    raise errors.UserError(
      'experts without slots: expected expert_capacity_dim (how many each'
      ' expert has for a group of tokens) or unadjusted_expert_capacity_factor'
      ' (how many all have together, over the number of tokens)'
    )
  wanted = 0
  if capacity_factor:
    wanted = int(group_size * capacity_factor / num_experts) or 4
  if wanted > (capacity_dim or 0):
    return -(-wanted // 4) * 4
  return capacity_dim


def cap_logits(logits: jax.Array, cap: float) -> jax.Array:
  """Returns `logits` [...] in float32, bent to less than cap if cap > 0."""
  logits = logits.astype(jnp.float32)
  return cap * jnp.tanh(logits / cap) if cap > 0 else logits


def top2_gating(
  logits: jax.Array,
  paddings: jax.Array | None,
  *,
  capacity: int,
  second_expert_policy: str = 'all',
  second_expert_threshold: float = 0.0,
  legacy_mtf_behavior: bool = True,
  key: jax.Array | None = None,
) -> Gating:
  """Sends each token to its best expert and, perhaps, to a second one.

  Earlier tokens of a group get slots before later ones, and all of them their
  first expert before any gets its second.

  Args:
    logits: [G, S, E].
    paddings: [G, S], 1 for tokens that no expert computes; None if there are
      none.
    capacity: C.
    second_expert_policy: 'all', the second-best expert, always; 'random', the
      second-best one, with a probability of its gate over
      `second_expert_threshold` (always, if that is more than 1); 'sampling',
      any other expert, with a probability in proportion to its gate.
    second_expert_threshold: see there.
    legacy_mtf_behavior: whether a token's two gates sum to 1 before it is seen
      for which of them there are slots, so that the token counts less where
      one is missing, and whether the auxiliary loss is the mean over all
      tokens, padding included; else the gates of the slots that the token got
      sum to 1, and padding does not change the loss.
    key: for the policies that draw at random.

  Returns:
    How the tokens are dealt out.

  Raises:
    UserError: there is no such policy.
  """
  if second_expert_policy not in SECOND_EXPERT_POLICIES:
    raise errors.UserError(
      f'second_expert_policy is {second_expert_policy!r}'
      + errors.did_you_mean(second_expert_policy, SECOND_EXPERT_POLICIES)
    )
  experts = logits.shape[-1]
  logits = logits.astype(jnp.float32)
  gates = jax.nn.softmax(logits)
  counts = jnp.ones(logits.shape[:2])
  if paddings is not None:
    counts = 1.0 - paddings.astype(jnp.float32)
  first = jax.nn.one_hot(jnp.argmax(gates, -1), experts) * counts[..., None]
  others = gates * (1.0 - first)
  if second_expert_policy == 'sampling':
    noise = jax.random.gumbel(key, logits.shape)
    scores = jnp.where(first > 0, -jnp.inf, logits + noise)
  else:
    scores = others
  second = jax.nn.one_hot(jnp.argmax(scores, -1), experts) * counts[..., None]
  gate_1, gate_2 = jnp.sum(gates * first, -1), jnp.sum(others * second, -1)
  if legacy_mtf_behavior:
    both = gate_1 + gate_2 + 1e-9
    gate_1, gate_2 = gate_1 / both, gate_2 / both
  aux_loss = _balance_loss(gates, first, counts, legacy_mtf_behavior)
  if second_expert_policy == 'random':
    threshold = max(second_expert_threshold, 1e-9)
    goes = jax.random.uniform(key, gate_2.shape) < gate_2 / threshold
    second = second * goes[..., None]

  slots_1, got_1, over_1 = _slots(first, 0.0, capacity)
  taken = jnp.sum(got_1, axis=1, keepdims=True)
  slots_2, got_2, over_2 = _slots(second, taken, capacity)
  gate_1, gate_2 = gate_1 * jnp.sum(got_1, -1), gate_2 * jnp.sum(got_2, -1)
  if not legacy_mtf_behavior:
    both = gate_1 + gate_2
    both = jnp.where(both > 0, both, 1.0)
    gate_1, gate_2 = gate_1 / both, gate_2 / both
  combine = _spread(gate_1, got_1, slots_1) + _spread(gate_2, got_2, slots_2)
  dispatch = (combine != 0).astype(combine.dtype)
  summaries = {'over_capacity_1_ratio': over_1, 'over_capacity_2_ratio': over_2}
  summaries |= _shares(dispatch, counts)
  return Gating(combine, dispatch, aux_loss, summaries)


def _balance_loss(gates, first, counts, legacy_mtf_behavior: bool) -> jax.Array:
  """Returns the loss [], which is least where tokens are spread evenly.

  Args:
    gates: [G, S, E].
    first: [G, S, E], 1 for the best expert of a token that counts.
    counts: [G, S], 1 for tokens that count.
    legacy_mtf_behavior: whether those that do not count lessen the loss.
  """
  share = jnp.mean(first, axis=1)
  proxy = jnp.mean(gates * counts[..., None], axis=1)
  if not legacy_mtf_behavior:
    counted = jnp.mean(counts, axis=1, keepdims=True) + 1e-6
    share, proxy = share / counted, proxy / counted
  return jnp.mean(share * proxy) * gates.shape[-1] ** 2


def _slots(wanted, taken, capacity: int):
  """Gives slots to tokens, in order.

  Args:
    wanted: [G, S, E], 1 where a token wants a slot of an expert, at most one.
    taken: [G, 1, E], how many slots of each expert are taken already.
    capacity: C.

  Returns:
    The slot of each token, one-hot [G, S, C]; where it got one [G, S, E]; and
    the share of the wanted ones for which there was none.
  """
  position = jnp.cumsum(wanted, axis=1) - wanted + taken
  got = wanted * (position < capacity)
  slot = jnp.sum(position * got, -1).astype(jnp.int32)
  missed = jnp.sum(wanted) - jnp.sum(got)
  over = missed / jnp.maximum(jnp.sum(wanted), 1.0)
  return jax.nn.one_hot(slot, capacity), got, over


def _spread(gate, got, slots) -> jax.Array:
  """Returns the gates [G, S] at their experts and slots, [G, S, E, C]."""
  return jnp.einsum('gse,gsc->gsec', gate[..., None] * got, slots)


def _shares(dispatch, counts) -> dict[str, jax.Array]:
  """Returns the shares of the tokens that 0, 1 and 2 experts compute."""
  experts = jnp.sum(dispatch, axis=(-2, -1))
  tokens = jnp.maximum(jnp.sum(counts), 1.0)
  return {
    f'dispatch_{n}': jnp.sum((experts == n) * counts) / tokens for n in range(3)
  }


def expert_choice(
  logits: jax.Array, *, capacity_factor: float | None
) -> tuple[jax.Array, jax.Array]:
  """Lets each expert pick its tokens, padding or not.

  Args:
    logits: [G, S, E].
    capacity_factor: how many slots an expert has, over S // E.

  Returns:
    The gate of each slot [G, E, C], and its token, one-hot [G, E, C, S].

  Raises:
    UserError: no expert has a slot.
  """
  tokens, experts = logits.shape[1:]
  capacity = min(int(tokens // experts * (capacity_factor or 0)), tokens)
  if not capacity:
    raise errors.UserError(
      f"gating_func 'expert_choice' leaves the {experts} experts no slots in a"
      f' group of {tokens} tokens, with the factor {capacity_factor}; expected'
      ' larger groups or a larger unadjusted_expert_capacity_factor'
    )
  gates = jax.nn.softmax(logits.astype(jnp.float32))
  gate, picked = jax.lax.top_k(jnp.swapaxes(gates, 1, 2), capacity)
  return gate, jax.nn.one_hot(picked, tokens)


def expert_choice_v2(
  logits: jax.Array, paddings: jax.Array | None, *, capacity: int
) -> Gating:
  """Lets each expert pick its tokens among those that are no padding.

  Args:
    logits: [G, S, E].
    paddings: [G, S], 1 for tokens that no expert computes; None if there are
      none.
    capacity: C; no more than S are used.
  """
  tokens = logits.shape[1]
  capacity = min(capacity, tokens)
  gates = jax.nn.softmax(logits.astype(jnp.float32))
  counts = jnp.ones(logits.shape[:2])
  if paddings is not None:
    counts = 1.0 - paddings.astype(jnp.float32)
  scores = jnp.swapaxes(gates * counts[..., None], 1, 2)
  _, picked = jax.lax.top_k(scores, capacity)
  got = jnp.sum(jax.nn.one_hot(picked, tokens), axis=2)
  got = jnp.swapaxes(got, 1, 2) * counts[..., None]
  position = (jnp.cumsum(got, axis=1) - got).astype(jnp.int32)
  slots = jax.nn.one_hot(position, capacity) * got[..., None]
  per_token = jnp.sum(got) / jnp.maximum(jnp.sum(counts), 1.0)
  summaries = {'avg_expert_per_token': per_token}
  return Gating(gates[..., None] * slots, slots, jnp.zeros([]), summaries)


def dense_top2_gates(logits: jax.Array) -> jax.Array:
  """Returns the gates [G, S, E] of each token's two best experts.

  They sum to 1. There are no slots: all experts compute all tokens.

  Args:
    logits: [G, S, E].
  """
  gates = jax.nn.softmax(logits.astype(jnp.float32))
  best, _ = jax.lax.top_k(gates, min(2, gates.shape[-1]))
  gates = gates * (gates >= best[..., -1:])
  return gates / jnp.sum(gates, -1, keepdims=True)
