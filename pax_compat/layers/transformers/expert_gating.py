"""Gating of mixtures of experts: which experts compute which tokens.

Tokens are dispatched within groups. An expert has a capacity of C slots per
group; tokens over capacity are not computed by it. In top-2 gating tokens
choose experts (algorithm 2 of https://arxiv.org/abs/2006.16668); in expert
choice experts choose tokens (https://arxiv.org/abs/2202.09368).

Shapes: G groups, S tokens of a group, E experts, C slots of an expert per
group. Gates are computed in float32, whatever the dtype of the logits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat import errors

SECOND_EXPERT_POLICIES = ('all', 'sampling', 'random')


class Gating(NamedTuple):
  """The dispatch of tokens to slots of experts.

  Attributes:
    combine: [G, S, E, C], the gate of a slot's output for a token; 0 if the
      token is not in the slot.
    dispatch: [G, S, E, C], 1 if the token is in the slot, else 0.
    aux_loss: [], the load-balancing loss, least if experts have equal loads.
    summaries: scalar statistics by name.
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
  """Returns the expert capacity C.

  >>> expert_capacity(24, 4, capacity_dim=None, capacity_factor=2.0)
  12

  Args:
    group_size: S.
    num_experts: E.
    capacity_dim: minimum of C; None or 0 for no minimum.
    capacity_factor: requests S * factor / E slots, or 4 if that is less than 1;
      if it exceeds `capacity_dim`, C is the request, rounded up to a multiple
      of 4. None or 0 for no request.

  Raises:
    UserError: neither of the two is set.
  """
  if not capacity_dim and not capacity_factor:
    raise errors.UserError(
      'the experts have no capacity; expected expert_capacity_dim (slots of'
      ' each expert per group of tokens) or unadjusted_expert_capacity_factor'
      ' (slots of all experts, relative to the number of tokens)'
    )
  requested = 0
  if capacity_factor:
    requested = int(group_size * capacity_factor / num_experts) or 4
  if requested > (capacity_dim or 0):
    return -(-requested // 4) * 4
  return capacity_dim


def cap_logits(logits: jax.Array, cap: float) -> jax.Array:
  """Returns `logits` [...] in float32, soft-capped to (-cap, cap) if cap > 0.

  >>> print(cap_logits(jnp.array([0.0, 1e6]), 2.0))
  [0. 2.]
  """
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
  """Dispatches each token to its best expert and to a second one.

  Slots are assigned in the order of tokens, to all first experts before any
  second one.

  Args:
    logits: [G, S, E].
    paddings: [G, S], 1 for tokens that are not dispatched, or None.
    capacity: C.
    second_expert_policy: 'all', always the second-best expert; 'random', the
      second-best expert with probability min(1, gate /
      `second_expert_threshold`); 'sampling', an expert sampled in proportion to
      the gates of the others.
    second_expert_threshold: see `second_expert_policy`.
    legacy_mtf_behavior: whether a token's gates are normalised before slots are
      assigned, so that they sum to less than 1 for a token over capacity, and
      the auxiliary loss is a mean over all tokens, padding included; else
      gates are normalised afterwards, and the loss ignores padding.
    key: for policies with random choices.

  Raises:
    UserError: the policy is unknown.
  """
  errors.check_known(
    'second_expert_policy', second_expert_policy, SECOND_EXPERT_POLICIES
  )
  experts = logits.shape[-1]
  logits = logits.astype(jnp.float32)
  gates = jax.nn.softmax(logits)
  weights = _token_weights(logits, paddings)
  first = jax.nn.one_hot(jnp.argmax(gates, -1), experts) * weights[..., None]
  others = gates * (1.0 - first)
  if second_expert_policy == 'sampling':
    noise = jax.random.gumbel(key, logits.shape)
    scores = jnp.where(first > 0, -jnp.inf, logits + noise)
  else:
    scores = others
  second = jax.nn.one_hot(jnp.argmax(scores, -1), experts) * weights[..., None]
  gate_1, gate_2 = jnp.sum(gates * first, -1), jnp.sum(others * second, -1)
  if legacy_mtf_behavior:
    both = gate_1 + gate_2 + 1e-9
    gate_1, gate_2 = gate_1 / both, gate_2 / both
  aux_loss = _balance_loss(gates, first, weights, legacy_mtf_behavior)
  if second_expert_policy == 'random':
    threshold = max(second_expert_threshold, 1e-9)
    is_chosen = jax.random.uniform(key, gate_2.shape) < gate_2 / threshold
    second = second * is_chosen[..., None]

  slots_1, sent_1, over_1 = _assign_slots(first, 0.0, capacity)
  occupied = jnp.sum(sent_1, axis=1, keepdims=True)
  slots_2, sent_2, over_2 = _assign_slots(second, occupied, capacity)
  gate_1, gate_2 = gate_1 * jnp.sum(sent_1, -1), gate_2 * jnp.sum(sent_2, -1)
  if not legacy_mtf_behavior:
    both = gate_1 + gate_2
    both = jnp.where(both > 0, both, 1.0)
    gate_1, gate_2 = gate_1 / both, gate_2 / both
  combine = _combine(gate_1, sent_1, slots_1) + _combine(
    gate_2, sent_2, slots_2
  )
  dispatch = (combine != 0).astype(combine.dtype)
  summaries = {'over_capacity_1_ratio': over_1, 'over_capacity_2_ratio': over_2}
  summaries |= _dispatch_fractions(dispatch, weights)
  return Gating(combine, dispatch, aux_loss, summaries)


def _token_weights(logits, paddings) -> jax.Array:
  """Returns weights [G, S] of tokens, 0 for padding, given logits [G, S, E]."""
  if paddings is None:
    return jnp.ones(logits.shape[:2])
  return 1.0 - paddings.astype(jnp.float32)


def _balance_loss(
  gates, first, weights, legacy_mtf_behavior: bool
) -> jax.Array:
  """Returns the load-balancing loss [].

  Args:
    gates: [G, S, E].
    first: [G, S, E], 1 for the best expert of a token, 0 for padding.
    weights: [G, S], 0 for padding.
    legacy_mtf_behavior: whether padding reduces the loss.
  """
  density = jnp.mean(first, axis=1)
  proxy = jnp.mean(gates * weights[..., None], axis=1)
  if not legacy_mtf_behavior:
    total = jnp.mean(weights, axis=1, keepdims=True) + 1e-6
    density, proxy = density / total, proxy / total
  return jnp.mean(density * proxy) * gates.shape[-1] ** 2


def _assign_slots(requests, occupied, capacity: int):
  """Assigns slots to tokens in order.

  Args:
    requests: [G, S, E], 1 if a token requests a slot of an expert; one expert
      per token at most.
    occupied: [G, 1, E], number of occupied slots of each expert.
    capacity: C.

  Returns:
    The slot of each token, one-hot [G, S, C]; the granted requests [G, S, E];
    and the fraction of requests over capacity [].
  """
  position = jnp.cumsum(requests, axis=1) - requests + occupied
  granted = requests * (position < capacity)
  slot = jnp.sum(position * granted, -1).astype(jnp.int32)
  missed = jnp.sum(requests) - jnp.sum(granted)
  over = missed / jnp.maximum(jnp.sum(requests), 1.0)
  return jax.nn.one_hot(slot, capacity), granted, over


def _combine(gate, sent, slots) -> jax.Array:
  """Returns the gates [G, S] at their experts and slots, [G, S, E, C]."""
  return jnp.einsum('gse,gsc->gsec', gate[..., None] * sent, slots)


def _dispatch_fractions(dispatch, weights) -> dict[str, jax.Array]:
  """Returns the fractions of tokens that are sent to 0, 1 and 2 experts."""
  experts = jnp.sum(dispatch, axis=(-2, -1))
  tokens = jnp.maximum(jnp.sum(weights), 1.0)
  return {
    f'dispatch_{n}': jnp.sum((experts == n) * weights) / tokens
    for n in range(3)
  }


def expert_choice(
  logits: jax.Array, *, capacity_factor: float | None
) -> tuple[jax.Array, jax.Array]:
  """Expert choice: each expert picks its top C tokens, padding included.

  Args:
    logits: [G, S, E].
    capacity_factor: C is this times S // E, at most S.

  Returns:
    The gate of each slot [G, E, C], and its token, one-hot [G, E, C, S].

  Raises:
    UserError: C is 0.
  """
  tokens, experts = logits.shape[1:]
  capacity = min(int(tokens // experts * (capacity_factor or 0)), tokens)
  if not capacity:
    raise errors.UserError(
      f"gating_func 'expert_choice': the {experts} experts have no capacity in"
      f' a group of {tokens} tokens with the factor {capacity_factor}; expected'
      ' larger groups or a larger unadjusted_expert_capacity_factor'
    )
  gates = jax.nn.softmax(logits.astype(jnp.float32))
  gate, picked = jax.lax.top_k(jnp.swapaxes(gates, 1, 2), capacity)
  return gate, jax.nn.one_hot(picked, tokens)


def expert_choice_v2(
  logits: jax.Array, paddings: jax.Array | None, *, capacity: int
) -> Gating:
  """Expert choice: each expert picks its top C tokens, padding excluded.

  Args:
    logits: [G, S, E].
    paddings: [G, S], 1 for tokens that are not dispatched, or None.
    capacity: C; at most S are used.
  """
  tokens = logits.shape[1]
  capacity = min(capacity, tokens)
  gates = jax.nn.softmax(logits.astype(jnp.float32))
  weights = _token_weights(logits, paddings)
  scores = jnp.swapaxes(gates * weights[..., None], 1, 2)
  _, picked = jax.lax.top_k(scores, capacity)
  sent = jnp.sum(jax.nn.one_hot(picked, tokens), axis=2)
  sent = jnp.swapaxes(sent, 1, 2) * weights[..., None]
  position = (jnp.cumsum(sent, axis=1) - sent).astype(jnp.int32)
  slots = jax.nn.one_hot(position, capacity) * sent[..., None]
  per_token = jnp.sum(sent) / jnp.maximum(jnp.sum(weights), 1.0)
  summaries = {'avg_expert_per_token': per_token}
  return Gating(gates[..., None] * slots, slots, jnp.zeros([]), summaries)


def dense_top2_gates(logits: jax.Array) -> jax.Array:
  """Returns the gates [G, S, E] of each token's two best experts, summing to 1.

  Without a capacity: all experts compute all tokens.

  Args:
    logits: [G, S, E].
  """
  gates = jax.nn.softmax(logits.astype(jnp.float32))
  best, _ = jax.lax.top_k(gates, min(2, gates.shape[-1]))
  gates = gates * (gates >= best[..., -1:])
  return gates / jnp.sum(gates, -1, keepdims=True)
