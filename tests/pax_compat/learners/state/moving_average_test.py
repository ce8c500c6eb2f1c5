"""The moving average of weights, over several steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, optimizers
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import learner, sgd

PARAMS = {
  'a': np.array([1.0, -2.0], np.float32),
  'sub': {'b': np.array([3.0], np.float32)},
}
GRADIENTS = [
  jax.tree.map(lambda w, i=i: (i + 1) * np.ones_like(w), PARAMS)
  for i in range(5)
]


def _expected(decay, weights):
  """Returns the averages after each step, from the weights before each."""
  average, result = weights[0], []
  for n, weight in enumerate(weights):
    d = min(decay, (1 + n) / (10 + n))
    average = d * average + (1 - d) * weight
    result.append(average)
  return result


@pytest.mark.parametrize('decay', [0.999, 0.2])
def test_five_steps(decay):
  """At decay 0.2 the early steps forget faster: 0.1 and 2/11 come first."""
  one = learner(sgd(ema_decay=decay))
  history = stepping.steps(one, PARAMS, GRADIENTS)
  before = [PARAMS, *(params for params, _, _ in history)][:-1]
  got = [one.ema_weights(state, params) for params, state, _ in history]
  for pick in (lambda t: t['a'], lambda t: t['sub']['b']):
    want = _expected(decay, [np.asarray(pick(t)) for t in before])
    np.testing.assert_allclose([pick(t) for t in got], want, rtol=1e-5)


def test_weights_after_a_step():
  """Lingvo's average starts at the initial weights, and averages the next."""
  one = learner(sgd(ema_decay=0.2), ema_after_update=True)
  average = PARAMS['a']
  for n, (params, state, _) in enumerate(
    stepping.steps(one, PARAMS, GRADIENTS)
  ):
    d = min(0.2, (1 + n) / (10 + n))
    average = d * average + (1 - d) * np.asarray(params['a'])
    got = one.ema_weights(state, params)
    np.testing.assert_allclose(got['a'], average, rtol=1e-5)


def test_weights_after_a_step_with_some_excluded():
  one = learner(
    sgd(ema_decay=0.2),
    ema_after_update=True,
    bprop_variable_exclusion='params/a',
    keep_optimizer_state_for_excluded_vars=True,
  )
  params, state, _ = stepping.steps(one, PARAMS, GRADIENTS)[-1]
  averages = one.ema_weights(state, params)
  np.testing.assert_allclose(averages['a'], PARAMS['a'], rtol=1e-6)
  assert np.all(averages['sub']['b'] > params['sub']['b'])


def test_a_skipped_step_does_not_count():
  nan = jax.tree.map(lambda g: g * np.nan, GRADIENTS[0])
  one = learner(sgd(ema_decay=0.9))
  want = stepping.steps(one, PARAMS, GRADIENTS[:3])[-1]
  got = stepping.steps(one, PARAMS, [*GRADIENTS[:2], nan, GRADIENTS[2]])[-1]
  jax.tree.map(np.testing.assert_array_equal, got[:2], want[:2])
  assert got[1].average.count == 3


def test_weights_without_an_average_are_themselves():
  one = learner(sgd(ema_decay=0.9), bprop_variable_exclusion='params/a')
  params, state, _ = stepping.steps(one, PARAMS, GRADIENTS)[-1]
  averages = one.ema_weights(state, {**params, 'a': np.array([7.0, 8.0])})
  np.testing.assert_array_equal(averages['a'], [7, 8])
  assert np.all(averages['sub']['b'] > params['sub']['b'])


def test_small_floats_are_averaged_in_float32():
  """bfloat16 would round steps of a thousandth away."""
  params = {'w': jnp.ones([2], jnp.bfloat16)}
  one = learner(optimizers.Sgd.config(learning_rate=0.5, ema_decay=0.999))
  state = stepping.init(one, params)
  assert state.average.ema['w'].dtype == jnp.float32
  _, state, _ = stepping.step(one, params, params, state)
  state = state._replace(
    average=state.average._replace(count=jnp.asarray(10**6))
  )
  half = {'w': jnp.full([2], 0.5, jnp.bfloat16)}
  _, state, _ = stepping.step(one, half, params, state)
  np.testing.assert_allclose(state.average.ema['w'], 0.9995, rtol=1e-6)
  assert one.ema_weights(state, params)['w'].dtype == jnp.bfloat16


def test_without_an_average():
  one = learner(sgd())
  state = stepping.init(one, PARAMS)
  assert not one.has_ema and state.average is None
  with pytest.raises(errors.UserError, match='expected an ema_decay above 0'):
    one.ema_weights(state, PARAMS)
