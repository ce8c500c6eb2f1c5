"""Steps, metrics and refusals of the learner."""

import doctest
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import errors, learners, optimizers, schedules
from pax_compat.base_layer import NON_TRAINABLE, SKIP_LP_REGULARIZATION
from pax_compat.layer_core.row_gradients import (
  RowStatistics,
  lookup_with_row_statistics,
)
from pax_compat.learners import learner as learner_lib
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import RATE, learner, sgd

PARAMS = {
  'a': np.array([[1.0, 2.0], [3.0, -4.0]], np.float32),
  'sub': {'b': np.array([5.0, -6.0], np.float32)},
}
GRADIENTS = {
  'a': np.array([[1.0, -2.0], [0.0, 2.0]], np.float32),
  'sub': {'b': np.array([4.0, 0.0], np.float32)},
}
NORM = 5.0
METAS = stepping.metas(
  PARAMS, **{'sub/b': {'collections': (SKIP_LP_REGULARIZATION,)}}
)


def test_the_example():
  found = doctest.testmod(learner_lib)
  assert found.attempted and not found.failed


def _update(learner, gradients, params=PARAMS, state=None, **row_statistics):
  return stepping.step(learner, params, gradients, state, METAS, row_statistics)


def _assert_moved(new, by, rtol=1e-5):
  """Fails unless `new` is PARAMS minus the learning rate times `by`."""
  want = jax.tree.map(lambda p, g: p - RATE * np.asarray(g), PARAMS, by)
  stepping.assert_trees_close(new, want, rtol)


def _times(factor):
  return jax.tree.map(lambda g: g * factor, GRADIENTS)


def _broken(value):
  broken = jax.tree.map(np.copy, GRADIENTS)
  broken['sub']['b'][1] = value
  return broken


def _adam():
  return optimizers.Adam.config(learning_rate=RATE, ema_decay=0.9)


def _assert_same(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  jax.tree.map(np.testing.assert_array_equal, got, want)


bad = pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])


def test_a_step_and_its_metrics():
  new, _, metrics = _update(learner(), GRADIENTS)
  _assert_moved(new, GRADIENTS)
  want = {
    'learning/lr': RATE,
    'learning/raw_grad_norm': NORM,
    'learning/clipped_grad_norm': NORM,
    'learning/applied_grad_norm': RATE * NORM,
    'learning/var_norm': np.sqrt(91),
    'learning/grad_scale': 1.0,
    'learning/is_valid_step': 1.0,
  }
  assert metrics.keys() == want.keys()
  for name, value in want.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-6, err_msg=name)


def test_norms_are_optional():
  quiet = learner(grad_norm_summary=False, var_norm_summary=False)
  _, _, metrics = _update(quiet, GRADIENTS)
  assert set(metrics) == {
    'learning/lr',
    'learning/grad_scale',
    'learning/is_valid_step',
  }


def test_norms_of_each_weight():
  one = learner(grad_norm_individual_vars=True, var_norm_individual_vars=True)
  _, _, metrics = _update(one, GRADIENTS)
  for name, value in {
    'per_var_grad_norm/params/a': 3,
    'per_var_grad_norm/params/sub/b': 4,
    'per_var_norm/params/a': np.sqrt(30),
    'per_var_norm/params/sub/b': np.sqrt(61),
  }.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-6, err_msg=name)


def test_norms_of_small_floats_are_summed_in_float32():
  """256 squares of 1, added one by one in bfloat16, would stay at 256."""
  params = {'w': jnp.ones([300, 300], jnp.bfloat16)}
  new, _, metrics = stepping.step(learner(), params, params)
  np.testing.assert_allclose(metrics['learning/raw_grad_norm'], 300)
  assert new['w'].dtype == jnp.bfloat16


@bad
def test_a_skipped_step_leaves_everything_as_it_was(value):
  one = learner(_adam())
  params, state, _ = _update(one, GRADIENTS)
  new, new_state, metrics = _update(one, _broken(value), params, state)
  _assert_same((new, new_state), (params, state))
  assert metrics['learning/is_valid_step'] == 0
  assert metrics['learning/applied_grad_norm'] == 0


@pytest.mark.parametrize(('limit', 'valid'), [(4.9, 0), (5.0, 0), (5.1, 1)])
def test_a_step_that_explodes_is_skipped(limit, valid):
  one = learner(_adam(), skip_step_gradient_norm_value=limit)
  state = stepping.init(one, PARAMS, METAS)
  new, new_state, metrics = _update(one, GRADIENTS, state=state)
  assert metrics['learning/is_valid_step'] == valid
  if not valid:
    _assert_same((new, new_state), (PARAMS, state))
  else:
    assert not np.array_equal(new['a'], PARAMS['a'])


def test_a_skipped_step_has_no_effect_on_later_steps():
  one = learner(_adam())
  want = stepping.steps(one, PARAMS, [GRADIENTS, _times(2)], METAS)
  got = stepping.steps(
    one, PARAMS, [GRADIENTS, _broken(np.nan), _times(2)], METAS
  )
  _assert_same(got[-1][:2], want[-1][:2])


def test_invalid_steps_may_be_reported_only():
  one = learner(
    skip_step_gradient_norm_value=1.0,
    enable_skip_step_on_gradient_anomalies=False,
  )
  new, _, metrics = _update(one, GRADIENTS)
  _assert_moved(new, GRADIENTS)
  assert metrics['learning/is_valid_step'] == 0


def test_steps_that_are_not_checked_are_valid():
  one = learner(check_valid_step=False)
  new, _, metrics = _update(one, _broken(np.nan))
  assert metrics['learning/is_valid_step'] == 1
  assert np.isnan(new['sub']['b'][1]) and np.isfinite(new['a']).all()


def test_a_skipped_step_keeps_non_trainable_variables():
  old = {NON_TRAINABLE: {'bn': {'mean': np.zeros(2), 'n': np.int32(3)}}}
  new = {NON_TRAINABLE: {'bn': {'mean': np.ones(2), 'n': np.int32(4)}}}
  for gradients, want in ((GRADIENTS, new), (_broken(np.nan), old)):
    _, _, metrics = _update(learner(), gradients)
    _assert_same(learner().next_variables(old, new, metrics), want)
    lingvos = learner(nonfinite_gradients='zero')
    _assert_same(lingvos.next_variables(old, new, metrics), new)


def test_the_learning_rate_reported_is_the_one_used():
  """Also after a skipped step, which the schedule does not count."""
  schedule = schedules.Transformer.config(warmup_steps=10, model_dim=1)
  one = learner(sgd(lr_schedule=schedule))
  params, state, first = _update(one, _broken(np.nan))
  new, _, metrics = _update(one, GRADIENTS, params=params, state=state)
  assert metrics['learning/lr'] == first['learning/lr'] > 0
  jax.tree.map(
    lambda old, new, g: np.testing.assert_allclose(
      old - new, metrics['learning/lr'] * g, rtol=1e-4, atol=1e-6
    ),
    *(params, new, GRADIENTS),
  )


@pytest.mark.parametrize(('limit', 'scale'), [(5.0, 0.0), (5.1, 1.0)])
def test_gradients_of_a_large_norm_are_set_to_zero(limit, scale):
  # Momentum of the previous step shows that the optimizer steps on.
  one = learner(sgd(momentum=0.5), grad_norm_to_clip_to_zero=limit)
  ones = jax.tree.map(np.ones_like, GRADIENTS)
  _, state, _ = _update(one, ones)
  new, _, metrics = _update(one, GRADIENTS, state=state)
  _assert_moved(new, jax.tree.map(lambda g: scale * g + 0.5, GRADIENTS))
  assert metrics['learning/grad_scale'] == scale


@bad
def test_nonfinite_gradients_are_set_to_zero(value):
  one = learner(_adam(), nonfinite_gradients='zero')
  _, state, _ = _update(one, GRADIENTS)
  got = _update(one, _broken(value), state=state)
  want = _update(one, _times(0.0), state=state)
  _assert_same(got[:2], want[:2])
  assert got[2]['learning/is_valid_step'] == 0
  # Adam's momentum still moves the weights.
  assert not np.array_equal(got[0]['a'], PARAMS['a'])


@pytest.mark.parametrize('before', [False, True])
def test_a_table_is_regularized_lookup_by_lookup(before):
  """Each of the c lookups of a row has a gradient, and 1 / c of the L2 term."""
  l2, ids = 0.5, [0, 0, 0]
  pulls = np.array([[1, 2], [3, -1], [0, 1]], np.float32)
  table = PARAMS['a']

  def loss(table, probe):
    return jnp.sum(
      lookup_with_row_statistics(table, np.array(ids), probe) * pulls
    )

  probe = RowStatistics(jnp.zeros(2), jnp.zeros([]))
  gradient, statistics = jax.grad(loss, argnums=(0, 1))(
    jnp.asarray(table), probe
  )
  new, _, metrics = _update(
    learner(sgd(l2_regularizer_weight=l2), regularize_before_clipping=before),
    {'a': gradient, 'sub': {'b': np.zeros(2, np.float32)}},
    a=statistics,
  )
  lookups = pulls + l2 * table[0] / 3
  want = np.array([lookups.sum(0), [0, 0]])  # row 1 was not looked up
  _assert_moved(new, {'a': want, 'sub': {'b': np.zeros(2)}})
  measured = lookups if before else pulls
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'],
    np.sqrt((measured**2).sum()),
    rtol=1e-5,
  )


def test_a_looked_up_vector_is_regularized_lookup_by_lookup():
  l2, vector = 0.5, np.array([5.0, -6.0, 2.0], np.float32)
  lookups = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])  # by element
  statistics = RowStatistics(
    np.array([2.0, 1.0, 0.0]), np.square(lookups).sum()
  )
  one = learner(sgd(l2_regularizer_weight=l2), regularize_before_clipping=True)
  params = {'bias': vector}
  gradient = {'bias': lookups.sum(0).astype(np.float32)}
  new, _, metrics = stepping.step(
    one, params, gradient, row_statistics={'bias': statistics}
  )
  each = np.array([[1.0, 2.0], [3.0, 0.0]]) + l2 * vector[:2] / [2, 1]
  each[1, 1] = 0  # looked up once only
  np.testing.assert_allclose(
    vector - new['bias'], RATE * np.append(each.sum(0), 0), rtol=1e-5
  )
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt((each**2).sum()), rtol=1e-5
  )


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'nonfinite_gradients': 'drop'}, "'drop'.*skip, zero"),
    ({'stochastic_gradient': object()}, 'expected one of learners.sgf'),
    ({'skip_zero_gradients': 'variable'}, "skip_zero_gradients is 'variable'"),
    (
      {'bprop_variable_exclusion': 'x', 'bprop_variable_inclusion': ['y']},
      'bprop_variable_exclusion and bprop_variable_inclusion exclude',
    ),
    (
      {
        'force_repeat_prefix_structure': True,
        'vectorize_on_repeat_prefix': False,
      },
      'no effect without vectorize_on_repeat_prefix',
    ),
    (
      {'skip_step_gradient_norm_value': 3.0, 'check_valid_step': False},
      'no effect without check_valid_step',
    ),
    (
      {'skip_step_gradient_norm_value': 3.0, 'nonfinite_gradients': 'zero'},
      'expected grad_norm_to_clip_to_zero',
    ),
    ({'bprop_variable_exclusion': ['(']}, r"exclusion: '\(' is not a regular"),
  ],
)
def test_refused(fields, message):
  with pytest.raises(errors.UserError, match=message):
    learner(name='mine', **fields)


@pytest.mark.parametrize(
  ('optimizer', 'message'),
  [
    (optimizers.Adam.config(), 'Adam: learning_rate is not set'),
    (
      optimizers.ShardedStaticAccumulator.config(
        optimizer_tpl=optimizers.Lion.config()
      ),
      'Lion: learning_rate is not set',
    ),
    (
      optimizers.OptaxOptimizer.config(
        grad_tx=optax.sgd(0.1), decoupled_weight_decay=0.1
      ),
      'OptaxOptimizer: learning_rate is not set',
    ),
    (
      optimizers.OptaxOptimizer.config(
        grad_tx=optax.scale(1.0), scale_by_learning_rate=True
      ),
      'OptaxOptimizer: learning_rate is not set',
    ),
    (
      sgd(lr_schedule=schedules.PiecewiseSchedule.config()),
      'PiecewiseSchedule.boundaries is required',
    ),
    (optimizers.Adam, "Learner.optimizer is <class '.*Adam'>; expected the co"),
  ],
)
def test_invalid_optimizers(optimizer, message):
  with pytest.raises(errors.UserError, match=message):
    learner(optimizer)


def test_an_optimizer_is_required():
  with pytest.raises(errors.UserError, match='Learner.optimizer is required'):
    learners.Learner.config().Instantiate()


def test_the_rate_of_an_optax_optimizer_is_reported_if_known():
  tx = optax.sgd(RATE)
  for fields, rate in (({}, 0), ({'learning_rate': RATE}, RATE)):
    one = learner(optimizers.OptaxOptimizer.config(grad_tx=tx, **fields))
    new, _, metrics = _update(one, GRADIENTS)
    _assert_moved(new, GRADIENTS)
    np.testing.assert_allclose(metrics['learning/lr'], rate)


def test_messages_start_with_the_learners_name():
  with pytest.raises(errors.UserError, match='^mine: Learner.skip_zero'):
    learner(name='mine', skip_zero_gradients='weight')


def test_paths():
  tree = {'lm': {'w': [1, 2]}}
  assert learners.by_path(tree) == {'lm/w/0': 1, 'lm/w/1': 2}
  whole = learners.by_path(tree, is_leaf=lambda x: isinstance(x, list))
  assert whole == {'lm/w': [1, 2]}


def test_on_an_accelerator_the_optimizer_runs_once(monkeypatch):
  """For both the norm of the updates and the weights."""
  one = learner(_adam())
  state = stepping.init(one, PARAMS, METAS)
  want = _update(one, GRADIENTS, state=state)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  update = (
    jax.jit(lambda p, s, g: one.update(p, s, g, weight_metas=METAS))
    .lower(PARAMS, state, GRADIENTS)
    .compile()
  )
  # One root of the second moment of `a` remains after XLA's passes.
  assert len(re.findall(r'f32\[2,2\]\S* sqrt\(', update.as_text())) == 1
  new, new_state, metrics, norms = update(PARAMS, state, GRADIENTS)
  stepping.assert_trees_close((new, new_state, metrics | norms), want, 1e-6)


def test_an_optimizer_that_is_built():
  fields = {'loss_name': 'loss'}
  config = optimizers.Sgd.config(
    learning_rate=RATE, lr_schedule=schedules.Constant.config(value=0.5)
  )
  made = [
    _update(learners.Learner(optimizer=one, **fields), GRADIENTS)[0]
    for one in (config.Instantiate(), config)
  ]
  stepping.assert_trees_close(*made, 0)
  _assert_moved(made[0], _times(0.5))
