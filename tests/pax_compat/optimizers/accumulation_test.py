"""Gradient accumulation against the wrapped optimizer on mean gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import config as config_lib
from pax_compat import errors, learners, optimizers, schedules
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE

NUM = 3
UPDATES = 2
SCHEDULE = {'start': (0, 1.0), 'limit': (5, 0.1)}
WRAPPED = {
  'Sgd': {'momentum': 0.9},
  # A smaller epsilon would amplify the rounding of means near zero.
  'Adam': {'epsilon': 1e-3},
  'RmsProp': {},
  'ShardedAdafactor': {
    'decay_method': 'adam',
    'decay_adam': 0.9,
    'beta1': 0.5,
  },
}


def _wrapped(name='Sgd', **fields):
  return getattr(optimizers, name).config(**{**WRAPPED[name], **fields})


def _accumulator(tpl, **fields):
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=tpl, num_sub_batches=NUM, **fields
  )


def _on_means(config) -> list[dict]:
  """Returns the weights after each step of an optimizer on mean gradients."""
  transformation = config.Instantiate().grad_transformation()
  weights, gradients = stepping.weights(), stepping.gradients(NUM * UPDATES)
  state, update = transformation.init(weights), jax.jit(transformation.update)
  history = []
  for i in range(UPDATES):
    mean = jax.tree.map(
      lambda *g: np.asarray(np.mean(np.float64(g), axis=0), np.float32),
      *gradients[NUM * i : NUM * (i + 1)],
    )
    updates, state = update(mean, state, weights)
    weights = optax.apply_updates(weights, updates)
    history.append(weights)
  return history


@pytest.mark.parametrize('name', WRAPPED)
def test_one_update_per_sub_batches(name):
  tpl = _wrapped(name)
  tpl.set(
    learning_rate=RATE, lr_schedule=schedules.Exponential.config(**SCHEDULE)
  )
  history = stepping.run(_accumulator(tpl), NUM * UPDATES)
  expected = _on_means(tpl)
  for step, weights in enumerate(history):
    done = (step + 1) // NUM
    for key, value in weights.items():
      if done == 0:
        np.testing.assert_array_equal(value, stepping.weights()[key])
        continue
      want = expected[done - 1][key]
      np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5)
      if (step + 1) % NUM:
        np.testing.assert_array_equal(value, history[step - 1][key])


def test_learning_rate_here_or_there():
  schedule = schedules.Linear.config(**SCHEDULE)
  there = _accumulator(_wrapped(learning_rate=RATE, lr_schedule=schedule))
  here = _accumulator(_wrapped(), learning_rate=RATE, lr_schedule=schedule)
  both = _accumulator(
    _wrapped(learning_rate=RATE, lr_schedule=schedule.clone()),
    learning_rate=RATE,
    lr_schedule=schedule,
  )
  want = stepping.run(there, NUM)[-1]
  for config in (here, both):
    for key, value in stepping.run(config, NUM)[-1].items():
      np.testing.assert_array_equal(value, want[key])
  # The template is unchanged.
  assert here.optimizer_tpl.learning_rate is None


@pytest.mark.parametrize(
  'by_batches,schedule_step', [(False, [0, 1, 2]), (True, [2, 5, 8])]
)
def test_reported_learning_rate(by_batches, schedule_step):
  schedule = schedules.Linear.config(start=(0, 0.0), limit=(100, 100.0))
  config = _accumulator(
    _wrapped(),
    learning_rate=2.0,
    lr_schedule=schedule,
    schedule_counts_sub_batches=by_batches,
  )
  optimizer = config.Instantiate()
  rate_at = optimizer.learning_rate_fn()
  rates = [rate_at(jnp.int32(n)) for n in range(3 * NUM)]
  np.testing.assert_allclose(
    rates, np.repeat(2.0 * np.array(schedule_step), NUM)
  )
  state = optimizer.grad_transformation().init(stepping.weights())
  assert state[-1].count == 0


def test_which_steps_update():
  optimizer = _accumulator(_wrapped()).Instantiate()
  updates = [bool(optimizer.updates_weights(jnp.int32(n))) for n in range(7)]
  assert updates == [False, False, True, False, False, True, False]


def test_gradients_are_summed_in_float32():
  config = _accumulator(_wrapped(learning_rate=RATE))
  state = (
    config.Instantiate()
    .grad_transformation()
    .init({'w': jnp.ones([2], jnp.bfloat16)})
  )
  assert state[0].acc_grads['w'].dtype == jnp.float32


def test_reduced_dims_are_those_of_the_wrapped_optimizer():
  tpl = _wrapped('ShardedAdafactor')
  optimizer = _accumulator(tpl).Instantiate()
  assert optimizer.reduced_dim('vr', (4, 4), (4,)) == 1
  assert optimizer.reduced_dim('vc', (4, 4), (4,)) == 0


@pytest.mark.parametrize(
  'tpl_fields,fields,message',
  [
    ({}, {'num_sub_batches': 0}, 'num_sub_batches is 0; expected 1 or more'),
    (
      {},
      {'accumulation_use_cond_op': True},
      'accumulation_use_cond_op is True, expected False',
    ),
    (
      {'clip_gradient_norm_to_value': 1.0},
      {},
      'clip_gradient_norm_to_value of the wrapped Sgd is 1.0; set it on',
    ),
    ({'ema_decay': 0.9}, {}, 'ema_decay of the wrapped Sgd'),
    (
      {'learning_rate': 0.1},
      {'learning_rate': 0.2},
      'learning_rate is set, and the wrapped optimizer has another one',
    ),
    (
      {'lr_schedule': schedules.Constant.config(value=2.0)},
      {'lr_schedule': schedules.Constant.config(value=3.0)},
      'lr_schedule is set',
    ),
  ],
)
def test_mistakes(tpl_fields, fields, message):
  config = _accumulator(_wrapped(**tpl_fields)).set(**fields)
  with pytest.raises(errors.UserError, match=message):
    config.Instantiate()


def test_the_wrapped_optimizer_is_required():
  with pytest.raises(config_lib.RequiredError, match='optimizer_tpl'):
    optimizers.ShardedStaticAccumulator.config().Instantiate()


_WEIGHTS = [1.0, 2.5, 0.5, 4.0, 3.0, 1.0]
# The batches of each update, with a total weight of 3 or more.
_MADE_OF = [[0, 1], [2, 3], [4]]


def _weighted(name='Adam', **fields):
  return optimizers.WeightedAccumulator.config(
    optimizer_tpl=_wrapped(name), min_weight=3.0, **fields
  )


def _weighted_mean(gradients, weights):
  return jax.tree.map(
    lambda *g: np.float32(np.average(np.float64(g), axis=0, weights=weights)),
    *gradients,
  )


def test_updates_by_weight():
  schedule = schedules.Linear.config(start=(0, 1.0), limit=(3, 0.1))
  rate = dict(learning_rate=RATE, lr_schedule=schedule)
  made = _weighted(**rate).Instantiate()
  transformation = made.grad_transformation()
  other = _wrapped('Adam', **rate).Instantiate().grad_transformation()
  weights = wanted = stepping.weights()
  state, wrapped = transformation.init(weights), other.init(weights)
  gradients = stepping.gradients(len(_WEIGHTS))
  means = [
    _weighted_mean([gradients[i] for i in own], [_WEIGHTS[i] for i in own])
    for own in _MADE_OF
  ]
  update, done = jax.jit(transformation.update), 0
  for i, gradient in enumerate(gradients):
    moves, state = update(
      gradient, state, weights, loss_weight=jnp.float32(_WEIGHTS[i])
    )
    weights = optax.apply_updates(weights, moves)
    if any(own[-1] == i for own in _MADE_OF):
      moves, wrapped = other.update(means[done], wrapped, wanted)
      wanted, done = optax.apply_updates(wanted, moves), done + 1
    assert state[-1].count == done
    for name, value in weights.items():
      np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-5)
  rates = [made.learning_rate_fn()(jnp.int32(n)) for n in range(3)]
  np.testing.assert_allclose(rates, RATE * np.array([1.0, 0.7, 0.4]), rtol=1e-6)


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'min_weight': 0.0}, 'min_weight is 0.0; it must be positive'),
    ({'decoupled_weight_decay': 0.1}, 'decoupled_weight_decay is 0.1'),
    ({'optimizer_tpl': _wrapped(ema_decay=0.5)}, 'of the wrapped Sgd'),
  ],
)
def test_mistakes_by_weight(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _weighted().set(**fields).Instantiate()


def test_averages_by_weight_are_of_every_step():
  """Which steps update weights is not known in advance."""
  optimizer = _weighted().set(ema_decay=0.9, learning_rate=RATE)
  learner = learners.Learner.config(optimizer=optimizer)
  with pytest.raises(
    errors.UserError, match='ema_decay is 0.9.*not known in advance'
  ):
    learner.Instantiate()
  assert learner.set(ema_every_step=True).Instantiate().has_ema


def test_accumulation_by_weight_does_not_support_no_op_steps():
  with pytest.raises(
    errors.UserError, match='WeightedAccumulator: it does not'
  ):
    _weighted().Instantiate().check_supports_no_op_steps()
