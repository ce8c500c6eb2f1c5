"""Learners: what happens to gradients before and around the optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers, schedules
from pax_compat.base_layer import SKIP_LP_REGULARIZATION, WeightHParams
from pax_compat.layers.row_gradients import RowFacts, lookup_with_row_facts

RATE = 0.1
PARAMS = {
  'a': np.array([[1.0, 2.0], [3.0, -4.0]], np.float32),
  'sub': {'b': np.array([5.0, -6.0], np.float32)},
}
GRADIENTS = {
  'a': np.array([[1.0, -2.0], [0.0, 2.0]], np.float32),
  'sub': {'b': np.array([4.0, 0.0], np.float32)},
}
NORM = 5.0
METAS = {
  'a': WeightHParams([2, 2]),
  'sub/b': WeightHParams([2], collections=(SKIP_LP_REGULARIZATION,)),
}


def _sgd(**fields):
  return optimizers.Sgd.config(learning_rate=RATE, **fields)


def _learner(optimizer=None, **fields):
  return learners.Learner.config(
    optimizer=optimizer or _sgd(), **fields
  ).Instantiate()


def _update(learner, gradients, params=PARAMS, state=None, **facts):
  state = learner.init(params) if state is None else state
  step = jax.jit(
    lambda p, s, g: learner.update(p, s, g, weight_metas=METAS, row_facts=facts)
  )
  return step(params, state, gradients)


def _assert_moved(new, by, rtol=1e-5):
  """Fails unless `new` is PARAMS minus the learning rate times `by`."""
  jax.tree.map(
    lambda n, p, g: np.testing.assert_allclose(
      n, p - RATE * np.asarray(g), rtol=rtol
    ),
    new,
    PARAMS,
    by,
  )


def _times(factor):
  return jax.tree.map(lambda g: g * factor, GRADIENTS)


def test_a_step_and_what_is_said_of_it():
  new, _, metrics = _update(_learner(), GRADIENTS)
  _assert_moved(new, GRADIENTS)
  np.testing.assert_allclose(metrics['grad_norm/all'], NORM)
  np.testing.assert_allclose(metrics['var_norm/all'], np.sqrt(91), rtol=1e-6)
  np.testing.assert_allclose(metrics['learning_rate'], RATE)
  assert metrics['grad_scale_all'] == 1 and metrics['has_nan_or_inf'] == 0


def test_the_norm_of_the_weights_may_be_left_out():
  _, _, metrics = _update(_learner(var_norm_summary=False), GRADIENTS)
  assert 'var_norm/all' not in metrics and 'grad_norm/all' in metrics


@pytest.mark.parametrize(('limit', 'scale'), [(1.0, 0.2), (10.0, 1.0)])
def test_gradients_are_scaled_down_together(limit, scale):
  learner = _learner(_sgd(clip_gradient_norm_to_value=limit))
  new, _, metrics = _update(learner, GRADIENTS)
  _assert_moved(new, _times(scale))
  np.testing.assert_allclose(metrics['grad_scale_all'], scale, rtol=1e-6)
  # The norm is that before the scaling.
  np.testing.assert_allclose(metrics['grad_norm/all'], NORM)


def test_gradients_of_zero_are_not_divided_by_their_norm():
  learner = _learner(_sgd(clip_gradient_norm_to_value=1.0))
  new, _, metrics = _update(learner, _times(0.0))
  _assert_moved(new, _times(0.0))
  assert metrics['has_nan_or_inf'] == 0


@pytest.mark.parametrize(('limit', 'scale'), [(5.0, 0.0), (5.1, 1.0)])
def test_a_norm_that_is_too_large_counts_as_zero(limit, scale):
  # The momentum of a step of size 1 before shows that the optimizer steps on.
  learner = _learner(_sgd(momentum=0.5), grad_norm_to_clip_to_zero=limit)
  state = jax.tree.map(jnp.ones_like, learner.init(PARAMS))
  new, _, metrics = _update(learner, GRADIENTS, state=state)
  _assert_moved(new, jax.tree.map(lambda g: scale * g + 0.5, GRADIENTS))
  assert metrics['grad_scale_all'] == scale


def _broken(value):
  broken = jax.tree.map(np.copy, GRADIENTS)
  broken['sub']['b'][1] = value
  return broken


bad = pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])


@bad
def test_skip_leaves_everything_as_it_was(value):
  learner = _learner(optimizers.Adam.config(learning_rate=RATE))
  _, state, _ = _update(learner, GRADIENTS)
  new, new_state, metrics = _update(learner, _broken(value), state=state)
  assert jax.tree.structure(new_state) == jax.tree.structure(state)
  jax.tree.map(np.testing.assert_array_equal, (new, new_state), (PARAMS, state))
  assert metrics['has_nan_or_inf'] == 1 and metrics['grad_scale_all'] == 0


def test_the_learning_rate_reported_is_the_one_used():
  """Also after a step that was skipped, which the schedule does not count."""
  schedule = schedules.Transformer.config(warmup_steps=10, model_dim=1)
  learner = _learner(_sgd(lr_schedule=schedule))
  params, state, first = _update(learner, _broken(np.nan))
  new, _, metrics = _update(learner, GRADIENTS, params=params, state=state)
  assert metrics['learning_rate'] == first['learning_rate'] > 0
  jax.tree.map(
    lambda old, new, g: np.testing.assert_allclose(
      old - new, metrics['learning_rate'] * g, rtol=1e-4, atol=1e-6
    ),
    *(params, new, GRADIENTS),
  )


@bad
def test_zero_steps_with_zeros(value):
  learner = _learner(
    optimizers.Adam.config(learning_rate=RATE), nonfinite_gradients='zero'
  )
  _, state, _ = _update(learner, GRADIENTS)
  got = _update(learner, _broken(value), state=state)
  want = _update(learner, _times(0.0), state=state)
  jax.tree.map(np.testing.assert_array_equal, got[:2], want[:2])
  # Adam's momentum moves the weights all the same.
  assert not np.array_equal(got[0]['a'], PARAMS['a'])


def test_other_ways_with_nonfinite_gradients_are_refused():
  with pytest.raises(errors.UserError, match="'drop'.*skip, zero"):
    _learner(nonfinite_gradients='drop')


def test_l2_is_added_where_it_is_not_skipped():
  new, _, metrics = _update(
    _learner(_sgd(l2_regularizer_weight=0.5)), GRADIENTS
  )
  regularised = {
    'a': GRADIENTS['a'] + 0.5 * PARAMS['a'],
    'sub': GRADIENTS['sub'],
  }
  _assert_moved(new, regularised)
  norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(regularised)))
  np.testing.assert_allclose(metrics['grad_norm/all'], norm, rtol=1e-6)


def test_a_table_is_measured_and_regularised_lookup_by_lookup():
  """Each of the c lookups of a row has its own gradient, and l2 / c of it."""
  l2, ids = 0.5, [0, 0, 0]
  pulls = np.array([[1, 2], [3, -1], [0, 1]], np.float32)
  table = PARAMS['a']

  def loss(table, probe):
    return jnp.sum(lookup_with_row_facts(table, np.array(ids), probe) * pulls)

  probe = RowFacts(jnp.zeros(2), jnp.zeros([]))
  gradient, facts = jax.grad(loss, argnums=(0, 1))(jnp.asarray(table), probe)
  new, _, metrics = _update(
    _learner(_sgd(l2_regularizer_weight=l2)),
    {'a': gradient, 'sub': {'b': np.zeros(2, np.float32)}},
    a=facts,
  )
  lookups = pulls + l2 * table[0] / 3
  want = np.array([lookups.sum(0), [0, 0]])  # row 1 was not looked up
  _assert_moved(new, {'a': want, 'sub': {'b': np.zeros(2)}})
  np.testing.assert_allclose(
    metrics['grad_norm/all'], np.sqrt((lookups**2).sum()), rtol=1e-5
  )


def test_paths():
  tree = {'lm': {'w': [1, 2]}}
  assert learners.by_path(tree) == {'lm/w/0': 1, 'lm/w/1': 2}
  whole = learners.by_path(tree, is_leaf=lambda x: isinstance(x, list))
  assert whole == {'lm/w': [1, 2]}
