"""Gates against a computation token by token.

Shapes: G groups, S tokens of a group, E experts, C slots of an expert per
group.
"""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.transformers import expert_gating
from tests.pax_compat.layers import numpy_experts as reference

G, S, E = 3, 12, 4
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(G, S, E)).astype(np.float32)
# An expert that most tokens choose, beyond its capacity.
LOGITS[..., 1] += 1.0
# Padding at the end, none, and in between.
PADDINGS = np.zeros([G, S], np.float32)
PADDINGS[0, 7:] = PADDINGS[2, 3:5] = 1


def _top2(logits=LOGITS, paddings=PADDINGS, capacity=4, **fields):
  return expert_gating.top2_gating(
    logits, paddings, capacity=capacity, **fields
  )


def test_examples():
  found = doctest.testmod(expert_gating)
  assert found.attempted and not found.failed


@pytest.mark.parametrize('legacy', [True, False])
@pytest.mark.parametrize('capacity', [1, 4, 24])
def test_top2(capacity, legacy):
  gating = _top2(capacity=capacity, legacy_mtf_behavior=legacy)
  combine, loss = reference.top2(LOGITS, PADDINGS, capacity, legacy)
  np.testing.assert_allclose(gating.combine, combine, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(gating.dispatch, combine != 0)
  np.testing.assert_allclose(gating.aux_loss, loss, rtol=1e-5)


def test_no_paddings_are_paddings_of_zero():
  jax.tree.map(
    np.testing.assert_array_equal,
    _top2(paddings=None),
    _top2(paddings=np.zeros_like(PADDINGS)),
  )


def test_long_queues_of_half_precision():
  """Places beyond 256 are not distinct in bfloat16."""
  logits = jnp.asarray(RNG.normal(size=(1, 700, 2)), jnp.bfloat16)
  none = np.zeros([1, 700], np.float32)
  gating = _top2(logits, none, capacity=700)
  combine, _ = reference.top2(np.float32(logits), none, 700)
  np.testing.assert_allclose(gating.combine, combine, rtol=1e-5, atol=1e-6)


def test_what_the_summaries_of_top2_tell():
  gating = _top2(capacity=2)
  combine, _ = reference.top2(LOGITS, PADDINGS, 2)
  real = PADDINGS == 0
  computed = (combine != 0).sum((2, 3))[real]
  for n in range(3):
    np.testing.assert_allclose(
      gating.summaries[f'dispatch_{n}'], np.mean(computed == n), rtol=1e-6
    )
  first = np.argmax(LOGITS, -1)
  got_first = (combine != 0).any(3)[np.arange(G)[:, None], np.arange(S), first]
  np.testing.assert_allclose(
    gating.summaries['over_capacity_1_ratio'],
    np.mean(~got_first[real]),
    rtol=1e-6,
  )


def test_tokens_spread_evenly_have_a_loss_of_one():
  logits = np.where(np.arange(S)[:, None] % E == np.arange(E), 20.0, 0.0)
  gating = _top2(logits[None], None)
  np.testing.assert_allclose(gating.aux_loss, 1.0, rtol=1e-4)
  crowded = _top2(np.zeros([1, S, E]) + [20.0, 0, 0, 0], None)
  np.testing.assert_allclose(crowded.aux_loss, E, rtol=1e-4)


def test_the_gradient_of_the_loss_is_that_of_the_gates_alone():
  def proxy(logits):
    first = jax.nn.one_hot(np.argmax(LOGITS, -1), E)
    real = (1 - PADDINGS)[..., None]
    share = jnp.mean(first * real, 1)
    return jnp.mean(share * jnp.mean(jax.nn.softmax(logits) * real, 1)) * E**2

  np.testing.assert_allclose(
    jax.grad(lambda x: _top2(x).aux_loss)(LOGITS),
    jax.grad(proxy)(LOGITS),
    rtol=1e-5,
    atol=1e-8,
  )


def _many(logits, **fields):
  """Returns how often each expert is the second one of equal tokens."""
  tokens = np.broadcast_to(np.float32(logits), [1000, 20, len(logits)])
  dispatch = _top2(
    tokens, None, capacity=20, key=jax.random.key(0), **fields
  ).dispatch
  return np.asarray(dispatch.any(-1).mean((0, 1)))


def test_a_second_expert_at_random_goes_by_its_gate():
  logits = np.log([0.5, 0.3, 0.2])
  gate_2 = 0.3 / 0.8
  share = _many(
    logits, second_expert_policy='random', second_expert_threshold=0.5
  )
  np.testing.assert_allclose(share, [1, gate_2 / 0.5, 0], atol=0.02)
  always = _many(
    logits, second_expert_policy='random', second_expert_threshold=0.3
  )
  np.testing.assert_array_equal(always, [1, 1, 0])


def test_a_sampled_second_expert_is_any_but_the_first():
  share = _many(np.log([0.5, 0.3, 0.2]), second_expert_policy='sampling')
  np.testing.assert_allclose(share, [1, 0.6, 0.4], atol=0.02)


def test_without_a_threshold_random_is_all():
  key = jax.random.key(0)
  random = _top2(second_expert_policy='random', key=key)
  jax.tree.map(np.testing.assert_array_equal, random, _top2())


def test_an_unknown_policy():
  with pytest.raises(errors.UserError, match="policy is 'al'.*all, samp"):
    _top2(second_expert_policy='al')


@pytest.mark.parametrize(
  ('tokens', 'experts', 'dim', 'factor', 'want'),
  [
    (64, 4, 5, None, 5),
    (64, 4, 5, 0.0, 5),
    (64, 4, 0, 2.0, 32),
    (64, 4, None, 2.0, 32),
    (50, 4, 0, 2.0, 28),
    (50, 4, 40, 2.0, 40),
    (50, 4, 24, 2.0, 28),
    (2, 64, 0, 2.0, 4),
  ],
)
def test_the_capacity(tokens, experts, dim, factor, want):
  capacity = expert_gating.expert_capacity(
    tokens, experts, capacity_dim=dim, capacity_factor=factor
  )
  assert capacity == want


def test_no_capacity_at_all():
  with pytest.raises(errors.UserError, match='expected expert_capacity_dim'):
    expert_gating.expert_capacity(8, 2, capacity_dim=0, capacity_factor=None)


def test_capped_logits():
  np.testing.assert_allclose(
    expert_gating.cap_logits(LOGITS, 0.5),
    0.5 * np.tanh(LOGITS / 0.5),
    rtol=1e-5,
  )
  np.testing.assert_array_equal(expert_gating.cap_logits(LOGITS, 0.0), LOGITS)


def test_experts_choose_tokens():
  gate, picked = expert_gating.expert_choice(LOGITS, capacity_factor=2.0)
  assert gate.shape == (G, E, S // E * 2)
  counts = np.einsum('gec,gecs->gse', gate, picked)
  none = np.zeros_like(PADDINGS)
  want = reference.picked_by_experts(LOGITS, none, S // E * 2)
  np.testing.assert_allclose(counts, want, rtol=1e-5, atol=1e-7)


def test_experts_never_choose_more_than_there_is():
  gate, _ = expert_gating.expert_choice(LOGITS, capacity_factor=100)
  assert gate.shape == (G, E, S)


def test_experts_that_have_nothing_to_choose():
  with pytest.raises(errors.UserError, match='4 experts have no capacity'):
    expert_gating.expert_choice(LOGITS[:, :3], capacity_factor=2.0)


@pytest.mark.parametrize('capacity', [3, 50])
def test_experts_choose_no_padding(capacity):
  gating = expert_gating.expert_choice_v2(LOGITS, PADDINGS, capacity=capacity)
  want = reference.picked_by_experts(LOGITS, PADDINGS, capacity)
  np.testing.assert_allclose(gating.combine.sum(-1), want, rtol=1e-5, atol=1e-7)
  np.testing.assert_array_equal(gating.dispatch.sum(-1), want != 0)
  assert gating.dispatch.sum(1).max() == 1  # one token in a slot
  np.testing.assert_allclose(
    gating.summaries['avg_expert_per_token'],
    np.sum(want != 0) / np.sum(PADDINGS == 0),
    rtol=1e-6,
  )


def test_gates_of_the_two_best_experts():
  gates = reference.softmax(LOGITS)
  best = np.sort(gates, -1)[..., -2:-1]
  want = np.where(gates >= best, gates, 0)
  want /= want.sum(-1, keepdims=True)
  got = expert_gating.dense_top2_gates(LOGITS)
  np.testing.assert_allclose(got, want, rtol=1e-5)
