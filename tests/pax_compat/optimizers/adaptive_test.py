"""Adaptive optimizers against their papers' formulas."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import errors, optimizers
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE, assert_steps, rms


def _adam(beta1, beta2, epsilon, epsilon_root=0.0):
  """Returns a function from gradients to Adam's directions, as in its paper."""

  def directions(gradients):
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
      m = beta1 * m + (1 - beta1) * g
      v = beta2 * v + (1 - beta2) * g * g
      m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
      yield m_hat / (np.sqrt(v_hat + epsilon_root) + epsilon)

  return directions


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'clip_threshold': 0.0},
    {'clip_threshold': 0.5},
    {'epsilon_root': 1e-3},
    {'weight_decay': 0.1},
    {'sharded_adam': False},
    {'maybe_inf_to_nan': False},
  ],
)
def test_adam(fields):
  """Kingma and Ba 2014, algorithm 1, with Pax's clipping."""
  clip = (
    fields.get('clip_threshold', 1.0) if 'sharded_adam' not in fields else 0
  )

  def formula(name, w, gradients):
    del name
    adam = _adam(0.7, 0.9, 1e-3, fields.get('epsilon_root', 0.0))
    for u in adam(gradients):
      if clip:
        u = u / max(1.0, rms(u) / clip)
      w = w - RATE * (u + fields.get('weight_decay', 0.0) * w)
      yield w

  config = optimizers.Adam.config(
    learning_rate=RATE, beta1=0.7, beta2=0.9, epsilon=1e-3, **fields
  )
  assert_steps(config, formula)


def test_adam_with_epsilon_hat_is_tensorflows():
  """TensorFlow's documented formula for `tf.compat.v1.train.AdamOptimizer`."""
  beta1, beta2, epsilon = 0.8, 0.95, 1e-3

  def formula(name, w, gradients):
    del name
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
      m = beta1 * m + (1 - beta1) * g
      v = beta2 * v + (1 - beta2) * g * g
      rate = RATE * np.sqrt(1 - beta2**t) / (1 - beta1**t)
      w = w - rate * m / (np.sqrt(v) + epsilon)
      yield w

  config = optimizers.Adam.config(
    learning_rate=RATE,
    beta1=beta1,
    beta2=beta2,
    epsilon=epsilon,
    clip_threshold=0.0,
    epsilon_hat=True,
  )
  assert_steps(config, formula)
  # These gradients distinguish the two kinds of epsilon.
  with pytest.raises(AssertionError, match='after step 0'):
    assert_steps(config.set(epsilon_hat=False), formula)


def test_adams_presets_are_paxs():
  a, b = optimizers.Adam.HParamsA(), optimizers.Adam.HParamsB()
  assert [(c.beta1, c.beta2, c.epsilon) for c in (a, b)] == [
    (0.9, 0.997, 1e-9),
    (0.9, 0.98, 1e-9),
  ]
  assert optimizers.AdamW.HParamsA().Instantiate().weight_decay == 1e-4


@pytest.mark.parametrize(
  'fields,message',
  [
    (
      {'sharded_adam': False, 'weight_decay': 0.1},
      'Adam.weight_decay is 0.1, expected 0.0: .* sharded_adam is False',
    ),
    ({'sharded_adam': False, 'clip_threshold': 2.0}, 'clip_threshold is 2.0'),
    ({'epsilon_hat': True, 'epsilon_root': 1e-3}, 'epsilon_root is 0.001'),
  ],
)
def test_fields_without_effect_are_refused(fields, message):
  with pytest.raises(errors.UserError, match=message):
    optimizers.Adam.config(**fields).Instantiate()


def test_an_infinity_does_not_hide():
  """Divided by itself it would give a finite step."""
  weights = {'w': jnp.ones([2])}
  for cls in (optimizers.Adam, optimizers.Lion):
    transformation = cls.config(learning_rate=1.0).Instantiate().direction()
    updates, _ = transformation.update(
      {'w': jnp.array([1.0, -jnp.inf])}, transformation.init(weights), weights
    )
    assert np.isnan(updates['w'][1]), cls


def test_adam_w():
  """Loshchilov and Hutter 2017, algorithm 2, its schedule being the rate."""

  def formula(name, w, gradients):
    del name
    for u in _adam(0.7, 0.9, 1e-8)(gradients):
      w = w - RATE * (u + 0.1 * w)
      yield w

  config = optimizers.AdamW.config(
    learning_rate=RATE, beta1=0.7, beta2=0.9, weight_decay=0.1
  )
  assert_steps(config, formula)


def test_adam_ws_defaults_are_optaxs():
  history = stepping.run(optimizers.AdamW.config(learning_rate=RATE))
  want = stepping.run_transformation(optax.adamw(RATE))
  for name, value in want[-1].items():
    np.testing.assert_allclose(history[-1][name], value, atol=1e-7)


@pytest.mark.parametrize('mask', [None, True])
def test_lamb(mask):
  """You et al. 2019, algorithm 2, its phi being the identity."""
  decay = 0.1
  decayed = mask and {name: name == 'heads' for name in stepping.SHAPES}

  def formula(name, w, gradients):
    for u in _adam(0.8, 0.9, 1e-3, 1e-4)(gradients):
      if decayed is None or decayed[name]:
        u = u + decay * w
      w = w - RATE * np.linalg.norm(w) / np.linalg.norm(u) * u
      yield w

  config = optimizers.Lamb.config(
    learning_rate=RATE,
    b1=0.8,
    b2=0.9,
    eps=1e-3,
    eps_root=1e-4,
    weight_decay=decay,
    mask=decayed,
  )
  assert_steps(config, formula)


@pytest.mark.parametrize(
  'cls,fields,initial,epsilon',
  [
    ('Adagrad', {}, 0.1, 1e-10),
    ('ShardedAdagrad', {}, 1e-12, 1e-12),
    (
      'Adagrad',
      {'initial_accumulator_value': 1e-3, 'epsilon': 1e-2},
      1e-3,
      1e-2,
    ),
  ],
)
def test_adagrad(cls, fields, initial, epsilon):
  """Duchi et al. 2011, its diagonal form."""

  def formula(name, w, gradients):
    del name
    total = initial
    for g in gradients:
      total = total + g * g
      w = w - RATE * g / np.sqrt(total + epsilon)
      yield w

  config = getattr(optimizers, cls).config(learning_rate=RATE, **fields)
  assert_steps(config, formula)


@pytest.mark.parametrize('initial', [0.0, 1.0])
def test_rms_prop(initial):
  """Tieleman and Hinton's formula, with TensorFlow's momentum."""
  decay, momentum, epsilon = 0.8, 0.5, 1e-2

  def formula(name, w, gradients):
    del name
    v, collected = initial, 0.0
    for g in gradients:
      v = decay * v + (1 - decay) * g * g
      collected = momentum * collected + RATE * g / np.sqrt(v + epsilon)
      w = w - collected
      yield w

  config = optimizers.RmsProp.config(
    learning_rate=RATE,
    decay=decay,
    momentum=momentum,
    epsilon=epsilon,
    initial_scale=initial,
  )
  assert_steps(config, formula)
