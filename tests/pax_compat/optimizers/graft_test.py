"""Grafting against its definition, from the steps of both optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import errors, optimizers, schedules
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE

_LINEAR = schedules.Linear.config(start=(0, 1.0), limit=(2, 0.25))
_SGD = optimizers.Sgd.config()
_ADAM = optimizers.Adam.config(epsilon=1e-3)


def _graft(magnitude=_SGD, direction=_ADAM, **fields):
  return optimizers.Graft.config(
    magnitude_tpl=magnitude.clone(), direction_tpl=direction.clone(), **fields
  )


def _updates(config, weights, gradients):
  """Returns the updates of steps from the same weights, with momentum."""
  transformation = config.Instantiate().grad_transformation()
  state, found = transformation.init(weights), []
  for gradient in gradients:
    update, state = transformation.update(gradient, state, weights)
    found.append(update)
  return found


@pytest.mark.parametrize('own_rate', [None, 0.7])
def test_step_size_and_direction(own_rate):
  direction = _ADAM.clone().set(learning_rate=own_rate)
  rates = dict(learning_rate=RATE, lr_schedule=_LINEAR)
  weights, gradients = stepping.weights(), stepping.gradients()
  graft = _graft(direction=direction, **rates)
  found = _updates(graft, weights, gradients)
  lengths = _updates(_SGD.clone().set(**rates), weights, gradients)
  ways = _updates(_ADAM.clone().set(learning_rate=1.0), weights, gradients)
  for got, length, way in zip(found, lengths, ways, strict=True):
    for name, update in got.items():
      unit = way[name] / np.linalg.norm(way[name])
      want = np.linalg.norm(length[name]) * unit
      np.testing.assert_allclose(update, want, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(
    graft.Instantiate().learning_rate_fn()(jnp.int32(1)), 0.625 * RATE
  )


def test_a_direction_of_zero_gives_no_step():
  transformation = _graft(_ADAM, _SGD, learning_rate=RATE).Instantiate()
  transformation = transformation.grad_transformation()
  weights = {'w': jnp.ones([2])}
  state = transformation.init(weights)
  update, state = transformation.update({'w': jnp.ones([2])}, state, weights)
  assert np.linalg.norm(update['w']) == pytest.approx(2**0.5 * RATE, rel=1e-2)
  # Adam's momentum still moves the weights.
  update, _ = transformation.update({'w': jnp.zeros([2])}, state, weights)
  np.testing.assert_array_equal(update['w'], [0.0, 0.0])


def test_reduced_dims():
  adafactor = optimizers.ShardedAdafactor.config(
    decay_method='adam', decay_adam=0.9
  )
  made = _graft(adafactor, learning_rate=RATE).Instantiate()
  assert made.reduced_dim('vr', (3, 4), (3,)) == 1
  # Of a square matrix, where the other optimizer has no answer.
  assert made.reduced_dim('vr', (4, 4), (4,)) is None
  state = jax.eval_shape(made.grad_transformation().init, stepping.weights())
  assert state[-1].count.shape == ()


def test_it_does_not_support_no_op_steps():
  with pytest.raises(
    errors.UserError, match='Graft: it does not support no-op steps'
  ):
    _graft(learning_rate=RATE).Instantiate().check_supports_no_op_steps()


@pytest.mark.parametrize(
  'fields,message',
  [
    (
      {'magnitude': _SGD.clone().set(learning_rate=0.1)},
      'learning_rate of the wrapped Sgd is 0.1; set it on Graft',
    ),
    (
      {'direction': _SGD.clone().set(ema_decay=0.9)},
      'ema_decay of the wrapped Sgd is 0.9; set it on Graft',
    ),
    (
      {'direction': _SGD.clone().set(lr_schedule=_LINEAR)},
      'lr_schedule of the wrapped Sgd',
    ),
    (
      {
        'direction': optimizers.ShardedStaticAccumulator.config(
          optimizer_tpl=_SGD
        )
      },
      'ShardedStaticAccumulator accumulates gradients of several batches',
    ),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _graft(**fields, learning_rate=RATE).Instantiate()


def test_it_can_be_accumulated():
  config = optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=_graft(), num_sub_batches=2, learning_rate=RATE
  )
  weights = {'w': jnp.ones([2])}
  moved = optax.apply_updates(
    weights, _updates(config, weights, [{'w': jnp.ones([2])}] * 2)[-1]
  )
  np.testing.assert_allclose(moved['w'], [1 - RATE] * 2, rtol=1e-5)
