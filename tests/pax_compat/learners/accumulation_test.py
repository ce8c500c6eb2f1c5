"""Gradient accumulation within a learner."""

import jax
import numpy as np
import pytest

from pax_compat import optimizers, schedules
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import learner

PARAMS = {
  'a': np.array([[1.0, -2.0], [3.0, 4.0]], np.float32),
  'x': np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 6.0]], np.float32),
}
METAS = stepping.metas(PARAMS, x={'repeat_prefix': (2,)})
BATCHES = 3
UPDATES = 2
GRADIENTS = [
  {
    name: np.random.default_rng(i).normal(size=w.shape).astype(np.float32)
    for name, w in PARAMS.items()
  }
  for i in range(UPDATES * BATCHES)
]

_BASE = {
  'learning_rate': 0.1,
  'lr_schedule': schedules.Transformer.config(warmup_steps=4, model_dim=1),
}


def _lamb():
  return optimizers.Lamb.config(**_BASE)


def _accumulator(**fields):
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=_lamb(), num_sub_batches=BATCHES, **fields
  )


def _means(gradients):
  return [
    jax.tree.map(lambda *g: np.mean(g, axis=0), *gradients[i : i + BATCHES])
    for i in range(0, len(gradients), BATCHES)
  ]


def _assert_same_as_large_batches(fields, gradients, large, **own):
  """Fails unless small batches give the same weights as large ones.

  Args:
    fields: of the optimizer.
    gradients: of the small batches.
    large: of the large batches.
    **own: fields of the learner.
  """
  one = learner(_accumulator(**fields), **own)
  small = stepping.steps(one, PARAMS, gradients, METAS)
  for i, (params, _, metrics) in enumerate(small):
    before = small[i - 1][0] if i else PARAMS
    if (i + 1) % BATCHES:
      jax.tree.map(np.testing.assert_array_equal, params, before)
      assert metrics['learning/applied_grad_norm'] == 0
  other = learner(_lamb().set(**fields), **own)
  want = stepping.steps(other, PARAMS, large, METAS)
  for i, (params, state, metrics) in enumerate(want):
    got, got_state, got_metrics = small[(i + 1) * BATCHES - 1]
    stepping.assert_trees_close(got, params)
    np.testing.assert_allclose(
      got_metrics['learning/lr'], metrics['learning/lr']
    )
    if one.has_ema:
      stepping.assert_trees_close(got_state.average, state.average)


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'ema_decay': 0.9},
    {'l2_regularizer_weight': 0.1},
    {'decoupled_weight_decay': 0.1, 'ema_decay': 0.5},
  ],
)
def test_small_batches_match_large_ones(fields):
  _assert_same_as_large_batches(fields, GRADIENTS, _means(GRADIENTS))


def test_each_small_batch_is_clipped():
  limit = 1.5

  def clipped(gradient):
    norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
    return jax.tree.map(lambda g: g * min(1, limit / norm), gradient)

  clipped_gradients = list(map(clipped, GRADIENTS))
  one = learner(_accumulator(clip_gradient_norm_to_value=limit))
  got, _, metrics = stepping.steps(one, PARAMS, GRADIENTS, METAS)[-1]
  want, _, _ = stepping.steps(
    learner(_lamb()), PARAMS, _means(clipped_gradients), METAS
  )[-1]
  stepping.assert_trees_close(got, want)
  np.testing.assert_allclose(
    metrics['learning/clipped_grad_norm'], limit, rtol=1e-5
  )


def test_a_skipped_small_batch_does_not_count():
  nan = jax.tree.map(lambda g: g * np.nan, GRADIENTS[0])
  one = learner(_accumulator(ema_decay=0.9))
  want = stepping.steps(one, PARAMS, GRADIENTS, METAS)[-1]
  got = stepping.steps(
    one, PARAMS, [*GRADIENTS[:2], nan, *GRADIENTS[2:]], METAS
  )[-1]
  jax.tree.map(np.testing.assert_array_equal, got[:2], want[:2])


def test_accumulation_does_not_run_the_optimizer():
  """The optimizer runs in a conditional branch, also for stacked layers."""
  one = learner(
    _accumulator(),
    check_valid_step=False,
    grad_norm_summary=False,
    var_norm_summary=False,
  )
  state = stepping.init(one, PARAMS, METAS)
  jaxpr = jax.make_jaxpr(
    lambda p, s, g: one.update(p, s, g, weight_metas=METAS)[:2]
  )(PARAMS, state, GRADIENTS[0])
  assert str(jaxpr).count('cond[') == 2
