"""Optimizer wrappers of translated tasks."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptors.equivalents import lingvo_optimizers
from pax_compat import errors, learners, optimizers, schedules
from pax_compat.base_layer import WeightHParams

_GRADIENTS = {
  'rnn/wm': np.array([3.0, 4.0], np.float32),
  'rnn/b': np.array([12.0], np.float32),
  'other/w': np.array([100.0], np.float32),
}


def _optimizer(tpl, **fields):
  return lingvo_optimizers.GroupClipped.config(
    optimizer_tpl=tpl,
    paths=['rnn/wm', 'rnn/b'],
    norm=6.5,
    learning_rate=1.0,
    **fields,
  )


def _tree(leaves):
  return learners.variable_names.as_tree(leaves)


def test_only_the_group_is_scaled_down():
  made = _optimizer(optimizers.Sgd.config()).Instantiate()
  transformation = made.grad_transformation()
  weights = _tree({k: jnp.zeros_like(v) for k, v in _GRADIENTS.items()})
  state = transformation.init(weights)
  # The group's norm is 13, and half of it is allowed.
  for scale, left in ((1.0, 0.5), (0.1, 0.1), (0.5, 0.5)):
    gradients = {k: scale * v for k, v in _GRADIENTS.items()}
    updates, state = transformation.update(_tree(gradients), state, weights)
    moves = learners.by_path(updates)
    for path, value in _GRADIENTS.items():
      factor = scale if path == 'other/w' else left
      np.testing.assert_allclose(moves[path], -factor * value, rtol=1e-6)
  assert state[-1].count == 3


def test_no_op_steps_only_count():
  """As in a run of several tasks while another one is trained."""
  falling = schedules.Linear.config(start=(0, 1.0), limit=(4, 0.0))
  made = _optimizer(optimizers.Adam.config(), lr_schedule=falling).Instantiate()
  made.check_supports_no_op_steps()
  transformation = made.grad_transformation()
  weights = _tree({k: jnp.zeros_like(v) for k, v in _GRADIENTS.items()})
  gradients = _tree(_GRADIENTS)
  _, first = transformation.update(
    gradients, transformation.init(weights), weights
  )
  second, _ = transformation.update(gradients, first, weights)
  counted = made.no_op_step(made.no_op_step(first))
  assert counted[-1].count == 3
  late, _ = transformation.update(gradients, counted, weights)
  # The second step's direction, at the rate of the fourth step.
  for path, move in learners.by_path(second).items():
    found = learners.by_path(late)[path]
    np.testing.assert_allclose(found, move * (0.25 / 0.75), rtol=1e-5)
  with pytest.raises(errors.UserError, match='it does not support no-op steps'):
    _optimizer(
      optimizers.Adafactor.config()
    ).Instantiate().check_supports_no_op_steps()


def test_in_a_learner_with_an_accumulator_and_a_schedule():
  """Each batch's gradients are scaled; the update is by the mean of them."""
  learner = learners.Learner(
    optimizer=_optimizer(
      optimizers.ShardedStaticAccumulator.config(
        optimizer_tpl=optimizers.Sgd.config(), num_sub_batches=2
      ),
      lr_schedule=schedules.Linear.config(start=(0, 2.0), limit=(1, 1.0)),
    )
  )
  metas = {k: WeightHParams(shape=v.shape) for k, v in _GRADIENTS.items()}
  weights = _tree({k: jnp.zeros_like(v) for k, v in _GRADIENTS.items()})
  state = learner.init(weights, weight_metas=metas)
  for scale in (1.0, 0.1):
    gradients = _tree({k: scale * v for k, v in _GRADIENTS.items()})
    weights, state, metrics, _ = learner.update(
      weights, state, gradients, weight_metas=metas
    )
    np.testing.assert_allclose(metrics['learning/lr'], 2.0)
  found = learners.by_path(weights)
  for path, value in _GRADIENTS.items():
    mean = 0.55 if path == 'other/w' else 0.3
    np.testing.assert_allclose(found[path], -2.0 * mean * value, rtol=1e-6)


def test_states_are_those_of_the_wrapped_optimizer():
  adafactor = optimizers.ShardedAdafactor.config(
    decay_method='adam', decay_adam=0.9
  )
  made = _optimizer(adafactor).Instantiate()
  assert made.reduced_dim('vr', (5, 7), (5,)) == 1
  assert isinstance(made.grad_transformation(), optax.GradientTransformation)


_SHAPES = {
  'attention/w': (4, 3, 6),
  'attention/out': (4, 3, 6),
  'other/w': (5, 8),
}
_STEPS = {
  'attention/w': [('reshape', (4, 18))],
  'attention/out': [('transpose', (1, 2, 0)), ('reshape', (18, 4))],
}


def _there(path, x):
  if path == 'attention/w':
    return np.reshape(x, [4, 18])
  return np.reshape(np.moveaxis(x, 0, 2), [18, 4]) if path[-1] == 't' else x


def test_weights_that_are_seen_in_other_shapes():
  """As if they had them; Adafactor goes by shapes."""
  adafactor = optimizers.ShardedAdafactor.config(
    decay_method='pow',
    decay_pow=0.8,
    beta1=0.9,
    quantized_dtype='float32',
    sort_factored_second_moment_dims=True,
    min_dim_size_to_factor=4,
    multiply_by_parameter_scale=True,
  )
  made = lingvo_optimizers.InOtherShapes.config(
    optimizer_tpl=adafactor, steps=_STEPS, learning_rate=0.1
  ).Instantiate()
  plain = adafactor.clone().set(learning_rate=0.1).Instantiate()
  rng = np.random.default_rng(0)
  weights = {k: rng.normal(size=s) for k, s in _SHAPES.items()}
  moved = {k: _there(k, w) for k, w in weights.items()}
  ours, theirs = made.grad_transformation(), plain.grad_transformation()
  state, expected_state = ours.init(_tree(weights)), theirs.init(_tree(moved))
  for _ in range(3):
    gradients = {k: rng.normal(size=s) for k, s in _SHAPES.items()}
    updates, state = ours.update(_tree(gradients), state, _tree(weights))
    wanted, expected_state = theirs.update(
      _tree({k: _there(k, g) for k, g in gradients.items()}),
      expected_state,
      _tree(moved),
    )
    found, wanted = learners.by_path(updates), learners.by_path(wanted)
    for path, value in wanted.items():
      assert found[path].shape == _SHAPES[path]
      np.testing.assert_allclose(_there(path, found[path]), value, rtol=1e-6)
  assert state[-1].count == 3


def test_a_norm_that_is_not_positive():
  with pytest.raises(errors.UserError, match='norm is 0'):
    _optimizer(optimizers.Sgd.config()).set(norm=0.0).Instantiate()
