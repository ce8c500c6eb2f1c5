"""Mixtures of experts in numpy, token by token, to hold ours against.

Shapes: G groups, S tokens of a group, E experts, C slots of an expert for a
group, M model dims, H dims of the inner layer.
"""

import numpy as np


def softmax(logits):
  exp = np.exp(logits - logits.max(-1, keepdims=True))
  return exp / exp.sum(-1, keepdims=True)


def top2(logits, paddings, capacity, legacy=True):
  """Deals tokens out to their two best experts, one after the other.

  Args:
    logits: [G, S, E].
    paddings: [G, S].
    capacity: C.
    legacy: whether gates are made to sum to 1 before slots are given out.

  Returns:
    What each slot counts for each token, [G, S, E, C], and the loss.
  """
  groups, tokens, experts = logits.shape
  gates = softmax(logits.astype(np.float64))
  combine = np.zeros([groups, tokens, experts, capacity])
  loss = 0.0
  for g in range(groups):
    real = [s for s in range(tokens) if not paddings[g, s]]
    best = {s: np.argsort(-gates[g, s], kind='stable')[:2] for s in real}
    used = [0] * experts
    slots = {}
    for rank in range(2):
      for s in real:
        expert = best[s][rank]
        if used[expert] < capacity:
          slots[s, rank] = used[expert]
        # Wanted places count, too, until all first choices are made.
        used[expert] += 1
      used = [min(u, capacity) for u in used]
    for s in real:
      weights = [gates[g, s, e] for e in best[s]]
      if not legacy:
        weights = [w * ((s, r) in slots) for r, w in enumerate(weights)]
      total = sum(weights) or 1.0
      for rank, expert in enumerate(best[s]):
        if (s, rank) in slots:
          combine[g, s, expert, slots[s, rank]] = weights[rank] / total
    counted = tokens if legacy else len(real) + 1e-6 * tokens
    for e in range(experts):
      share = sum(best[s][0] == e for s in real) / counted
      proxy = sum(gates[g, s, e] for s in real) / counted
      loss += share * proxy * experts / groups
  return combine, loss


def picked_by_experts(logits, paddings, capacity):
  """Lets each expert pick the tokens with the best gates, but no padding.

  Returns:
    [G, S, E], the gate where the expert picked the token, else 0.
  """
  gates = softmax(logits.astype(np.float64)) * (1 - paddings[..., None])
  picked = np.zeros_like(gates)
  for g in range(gates.shape[0]):
    for e in range(gates.shape[2]):
      for s in np.argsort(-gates[g, :, e], kind='stable')[:capacity]:
        picked[g, s, e] = gates[g, s, e]
  return picked


def mixed(tokens, weights, counts, activation):
  """Returns what the experts make of tokens [G, S, M].

  Args:
    tokens: [G, S, M].
    weights: with 'wi_0', 'wo_0' and, if the inner layer is gated, 'wi_gate_0'.
    counts: [G, S, E], what each expert's output counts for each token.
    activation: of the inner layer.
  """
  total = np.zeros_like(tokens)
  for e in range(counts.shape[-1]):
    inner = tokens @ weights['wi_0'][e]
    if 'wi_gate_0' in weights:
      inner = activation(tokens @ weights['wi_gate_0'][e]) * inner
    else:
      inner = activation(inner)
    total += counts[..., e, None] * (inner @ weights['wo_0'][e])
  return total
