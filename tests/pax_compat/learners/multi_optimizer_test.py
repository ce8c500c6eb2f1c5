"""Several optimizers for different weights."""

import jax
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers, schedules
from tests.pax_compat.learners import stepping

PARAMS = {
  'emb': np.array([3.0, 4.0], np.float32),
  'lm': {
    'w': np.array([1.0, 2.0], np.float32),
    'emb': np.array([-1.0], np.float32),
  },
}
GRADIENTS = {
  'emb': np.array([6.0, 8.0], np.float32),  # norm 10
  'lm': {
    'w': np.array([0.0, 2.0], np.float32),
    'emb': np.array([1.0], np.float32),
  },
}


def _sgd(rate, **fields):
  return optimizers.Sgd.config(learning_rate=rate, **fields)


def _multi(main=None, first=None, second=None, **fields):
  given = {
    'auxiliary_optimizers': [first or _sgd(0.1), second or _sgd(0.01)],
    'auxiliary_regex': ['params/emb', 'params/lm/e'],
    'auxiliary_names': ['tables', 'other'],
  }
  return stepping.learner(
    main or _sgd(1.0), learners.MultiOptimizerLearner, **(given | fields)
  )


def _forces(new):
  return jax.tree.map(lambda p, n: p - n, PARAMS, new)


def test_each_weight_has_its_optimizer():
  new, state, metrics = stepping.step(_multi(), PARAMS, GRADIENTS)
  want = {
    'emb': 0.1 * GRADIENTS['emb'],
    'lm': {
      'w': GRADIENTS['lm']['w'],
      'emb': 0.01 * GRADIENTS['lm']['emb'],
    },
  }
  stepping.assert_trees_close(_forces(new), want, rtol=1e-4)
  assert set(state.optimizer) == {'main', 'tables', 'other'}
  rates = {k: v for k, v in metrics.items() if k.startswith('learning/lr')}
  stepping.assert_trees_close(
    rates,
    {
      'learning/lr_main': 1.0,
      'learning/lr_tables': 0.1,
      'learning/lr_other': 0.01,
    },
  )
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt(105), rtol=1e-6
  )


def test_schedule_decay_and_regularization_are_per_optimizer():
  schedule = schedules.Transformer.config(warmup_steps=2, model_dim=1)
  one = _multi(
    main=_sgd(1.0, l2_regularizer_weight=0.5, lr_schedule=schedule),
    first=_sgd(0.1, decoupled_weight_decay=0.2),
    second=_sgd(0.01, l1_regularizer_weight=0.3, momentum=0.5),
  )
  params, _, metrics = stepping.steps(one, PARAMS, [GRADIENTS] * 3)[-1]
  w, emb, other = (
    x.astype(np.float64)
    for x in (PARAMS['lm']['w'], PARAMS['emb'], PARAMS['lm']['emb'])
  )
  trace = 0.0
  for step in range(3):
    rate = min((step + 1) * 2**-1.5, (step + 1) ** -0.5)
    w = w - rate * (GRADIENTS['lm']['w'] + 0.5 * w)
    emb = emb - 0.1 * GRADIENTS['emb'] - 0.1 * 0.2 * emb
    trace = GRADIENTS['lm']['emb'] + 0.3 * np.sign(other) + 0.5 * trace
    other = other - 0.01 * trace
  want = {'emb': emb, 'lm': {'w': w, 'emb': other}}
  stepping.assert_trees_close(params, want)
  np.testing.assert_allclose(metrics['learning/lr_main'], rate, rtol=1e-5)


def test_all_gradients_are_scaled_together():
  new, _, metrics = stepping.step(
    _multi(main=_sgd(1.0, clip_gradient_norm_to_value=np.sqrt(105) / 2)),
    PARAMS,
    GRADIENTS,
  )
  np.testing.assert_allclose(metrics['learning/grad_scale'], 0.5, rtol=1e-6)
  np.testing.assert_allclose(
    _forces(new)['emb'], 0.05 * GRADIENTS['emb'], rtol=1e-4
  )


def _separate(**fields):
  return _multi(
    main=_sgd(1.0, clip_gradient_norm_to_value=1.0),
    first=_sgd(0.1, clip_gradient_single_norm_to_value=5.0),
    apply_separate_scaling=True,
    **fields,
  )


def test_gradients_of_each_optimizer_are_scaled_separately():
  new, _, metrics = stepping.step(_separate(), PARAMS, GRADIENTS)
  want = {
    'emb': 0.1 * GRADIENTS['emb'] / 2,
    'lm': {
      'w': GRADIENTS['lm']['w'] / 2,
      'emb': 0.01 * GRADIENTS['lm']['emb'],
    },
  }
  stepping.assert_trees_close(_forces(new), want, rtol=1e-4)
  for name, value in {
    'main/raw_grad_norm': 2,
    'main/clipped_grad_norm': 1,
    'main/grad_scale': 0.5,
    'tables/raw_grad_norm': 10,
    'tables/clipped_grad_norm': 5,
    'tables/grad_scale': 1,
    'other/raw_grad_norm': 1,
    'other/is_valid_step': 1,
    'raw_grad_norm': np.sqrt(105),
    'clipped_grad_norm': np.sqrt(27),
    'is_valid_step': 1,
  }.items():
    np.testing.assert_allclose(
      metrics[f'learning/{name}'], value, rtol=1e-6, err_msg=name
    )


def test_one_invalid_group_skips_the_whole_step():
  """Only the gradients of one of the optimizers are too large."""
  one = _separate(skip_step_gradient_norm_value=10.0)
  state = stepping.init(one, PARAMS)
  new, new_state, metrics = stepping.step(one, PARAMS, GRADIENTS, state)
  jax.tree.map(np.testing.assert_array_equal, (new, new_state), (PARAMS, state))
  valid = {
    name: float(metrics[f'learning/{name}is_valid_step'])
    for name in ('', 'main/', 'tables/', 'other/')
  }
  assert valid == {'': 0, 'main/': 1, 'tables/': 0, 'other/': 1}


def test_the_average_is_of_all_weights():
  one = _multi(main=_sgd(1.0, ema_decay=0.9))
  params, state, _ = stepping.steps(one, PARAMS, [GRADIENTS] * 2)[-1]
  first, _, _ = stepping.step(one, PARAMS, GRADIENTS)
  # After the first step the average is still the initial weights.
  keep = 2 / 11
  want = jax.tree.map(lambda p, w: keep * p + (1 - keep) * w, PARAMS, first)
  stepping.assert_trees_close(one.ema_weights(state, params), want)


def test_excluded_weights_have_no_optimizer():
  one = _multi(bprop_variable_exclusion='params/emb')
  new, state, metrics = stepping.step(one, PARAMS, GRADIENTS)
  np.testing.assert_array_equal(new['emb'], PARAMS['emb'])
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt(5), rtol=1e-6
  )
  assert 'tables' in state.optimizer


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'auxiliary_names': ['one']}, 'auxiliary_names 1.*one of each'),
    ({'auxiliary_regex': []}, 'auxiliary_regex 0'),
    ({'auxiliary_names': ['a', 'a']}, "'a'; expected names"),
    ({'auxiliary_names': ['a', 'main']}, "'main'; expected names"),
    ({'auxiliary_regex': ['params/emb', '(']}, r"'\(' is not a regular"),
    (
      {'first': _sgd(0.1, clip_gradient_norm_to_value=1.0)},
      "'tables' is 1.0.*together; expected apply_separate_scaling",
    ),
    ({'second': _sgd(0.1, ema_decay=0.5)}, "ema_decay.*'other' is 0.5"),
  ],
)
def test_refused(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _multi(**fields)


@pytest.mark.parametrize(
  ('regex', 'message'),
  [
    (['.*emb', 'params/lm'], "both '.*emb' and 'params/lm' match.*lm/emb"),
    (['params/emb', 'params/lm/q'], "'params/lm/q' matches.*mean: params/lm/w"),
  ],
)
def test_refused_for_these_weights(regex, message):
  with pytest.raises(errors.UserError, match=message):
    stepping.init(_multi(auxiliary_regex=regex), PARAMS)
