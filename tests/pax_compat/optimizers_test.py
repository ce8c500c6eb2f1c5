"""Optimizers against numpy loops and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import optimizers, schedules
from pax_compat.config import Config

STEPS = 8
GRADIENTS = np.random.default_rng(0).normal(size=(STEPS, 3))
# Small enough for epsilon to matter.
GRADIENTS[:, 0] *= 1e-5
FIRST = np.array([1.0, -2.0, 3.0])


def _steps(transformation) -> np.ndarray:
  """Returns the weights [STEPS, 3] after each step."""
  params = {'w': jnp.asarray(FIRST, jnp.float32)}
  state = transformation.init(params)
  history = []
  for gradient in GRADIENTS:
    updates, state = jax.jit(transformation.update)(
      {'w': jnp.asarray(gradient, jnp.float32)}, state, params
    )
    params = optax.apply_updates(params, updates)
    history.append(params['w'])
  return np.asarray(history)


def _ours(config: Config) -> np.ndarray:
  return _steps(config.Instantiate().grad_transformation())


def test_adam_with_epsilon_hat_is_tensorflows():
  """TensorFlow's documented formula for `tf.compat.v1.train.AdamOptimizer`."""
  rate, beta1, beta2, epsilon = 0.1, 0.8, 0.95, 1e-3
  w, m, v, want = FIRST.copy(), 0.0, 0.0, []
  for t, g in enumerate(GRADIENTS, 1):
    rate_t = rate * np.sqrt(1 - beta2**t) / (1 - beta1**t)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    w = w - rate_t * m / (np.sqrt(v) + epsilon)
    want.append(w)
  config = optimizers.Adam.config(
    learning_rate=rate,
    beta1=beta1,
    beta2=beta2,
    epsilon=epsilon,
    epsilon_hat=True,
  )
  np.testing.assert_allclose(_ours(config), want, rtol=1e-5)


def test_adam_without_epsilon_hat_is_optaxs():
  config = optimizers.Adam.config(
    learning_rate=0.1, beta1=0.8, beta2=0.95, epsilon=1e-3
  )
  want = _steps(optax.adam(0.1, b1=0.8, b2=0.95, eps=1e-3))
  np.testing.assert_allclose(_ours(config), want, rtol=1e-6)
  # The two kinds of epsilon can be told apart by these gradients.
  assert not np.allclose(_ours(config.set(epsilon_hat=True)), want, rtol=1e-3)


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('momentum', [None, 0.9])
def test_sgd(momentum, nesterov):
  w, trace, want = FIRST.copy(), 0.0, []
  for g in GRADIENTS:
    trace = g + (momentum or 0.0) * trace
    step = g + momentum * trace if nesterov and momentum else trace
    w = w - 0.1 * step
    want.append(w)
  config = optimizers.Sgd.config(
    learning_rate=0.1, momentum=momentum, nesterov=nesterov
  )
  np.testing.assert_allclose(_ours(config), want, rtol=1e-5)


def test_the_schedule_multiplies_the_learning_rate():
  schedule = schedules.Transformer.config(warmup_steps=4, model_dim=1)
  config = optimizers.Sgd.config(learning_rate=0.1, lr_schedule=schedule)
  rates = [0.1 * min((t + 1) * 4**-1.5, (t + 1) ** -0.5) for t in range(STEPS)]
  steps = -np.diff(np.concatenate([[FIRST], _ours(config)]), axis=0)
  want = np.array(rates)[:, None] * GRADIENTS
  np.testing.assert_allclose(steps, want, rtol=1e-4, atol=1e-6)
  rate_at = config.Instantiate().learning_rate_fn()
  np.testing.assert_allclose(
    [rate_at(t) for t in range(STEPS)], rates, rtol=1e-5
  )
