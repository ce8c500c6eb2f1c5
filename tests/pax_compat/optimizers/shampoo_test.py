"""Shampoo against its formula, in numpy and float64."""

import jax
import numpy as np
import pytest

from pax_compat import errors, optimizers
from pax_compat.optimizers import matrix_roots
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE

_STEPS = 7
_BASE = dict(
  # Keeps matrices of few gradients far from singular.
  epsilon=1e-2,
  start_step=2,
  root_interval_steps=2,
  learning_rate=RATE,
)


def _root(matrix, order, epsilon):
  values, vectors = np.linalg.eigh(matrix + epsilon * np.eye(len(matrix)))
  return vectors @ np.diag(values ** (-1.0 / order)) @ vectors.T


def _along(array, matrix, dim):
  return np.moveaxis(np.tensordot(array, matrix, (dim, 0)), -1, dim)


def _formula(config):
  """Returns the weights after each step; see `stepping.assert_steps`."""

  def steps(name, weight, gradients):
    del name
    shape, made = weight.shape, config.Instantiate()
    is_large = not shape or max(shape) > made.max_dim
    dims = []
    if len(shape) > 1 and not is_large:
      dims = [i for i, n in enumerate(shape) if n <= made.max_matrix_dim]
    squares = np.full(shape, made.initial_accumulator_value)
    matrices = {i: np.zeros([shape[i]] * 2) for i in dims}
    roots = {i: np.zeros([shape[i]] * 2) for i in dims}
    plain_mean, mean, keep = 0.0, 0.0, made.momentum
    for t, gradient in enumerate(gradients):
      squares = squares + gradient**2
      plain_mean = keep * plain_mean + (1 - keep) * gradient / squares**0.5
      direction = gradient
      for i in dims:
        direction = _along(direction, roots[i], i)
      mean = keep * mean + (1 - keep) * direction
      share = np.clip((t - made.start_step) / made.start_step, 0, 1)
      if len(shape) < 2 or is_large:
        share = 0
      norm = np.linalg.norm(mean)
      scaled = mean * np.linalg.norm(plain_mean) / norm if norm else 0 * mean
      weight = weight - RATE * (share * scaled + (1 - share) * plain_mean)
      yield weight
      for i in dims if t % made.statistics_interval_steps == 0 else ():
        rows = np.moveaxis(gradient, i, 0).reshape(shape[i], -1)
        decay = made.second_moment_decay
        new = rows @ rows.T * (1 if decay == 1 else 1 - decay)
        matrices[i] = decay * matrices[i] + new
      if (t + 1) % made.root_interval_steps == 0:
        order = 2 * len(dims)
        roots = {i: _root(matrices[i], order, made.epsilon) for i in dims}

  return steps


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'momentum': 0.0, 'initial_accumulator_value': 0.1},
    {'second_moment_decay': 0.7, 'statistics_interval_steps': 2},
    {'max_matrix_dim': 4},
    {'max_matrix_dim': 1},
    {'max_dim': 4},
  ],
)
def test_steps(fields):
  config = optimizers.Shampoo.config(**{**_BASE, **fields})
  stepping.assert_steps(config, _formula(config), steps=_STEPS)


def test_which_weights_are_preconditioned():
  made = optimizers.Shampoo.config(max_dim=9, max_matrix_dim=5).Instantiate()
  shapes = {
    (): [],
    (4,): [],
    (4, 5): [0, 1],
    (1, 4): [1],
    (1, 1): [],
    (4, 7, 2): [0, 2],
    (4, 10): [],
  }
  assert {s: made.matrix_dims(s) for s in shapes} == shapes
  assert made.is_preconditioned((7, 7))
  assert not made.is_preconditioned((4, 10))
  assert not made.is_preconditioned((1, 1))


def test_state_shapes():
  config = optimizers.Shampoo.config(**_BASE)
  transformation = config.Instantiate().grad_transformation()
  state, _ = jax.eval_shape(transformation.init, stepping.weights())
  shapes = [m['matrix'].shape for m in state.statistics]
  assert shapes == [(5, 5), (4, 4), (1,)]
  assert [m['bias'].shape for m in state.roots] == [(1,)] * 3
  assert state.preconditioned['bias'].shape == (1,)
  assert state.momentum['heads'].shape == state.sum_squares['heads'].shape
  # The matrix of a dimension is not sharded like the weight.
  assert config.Instantiate().reduced_dim('roots', (3, 3, 2), (3, 3)) is None


def test_inverse_root():
  rng = np.random.default_rng(1)
  factor = rng.normal(size=(4, 6)).astype(np.float32)
  matrix = factor @ factor.T
  root = matrix_roots.inverse_root(matrix, 4, 1e-3)
  power = np.linalg.matrix_power(np.float64(root), 4)
  np.testing.assert_allclose(
    power @ (matrix + 1e-3 * np.eye(4)), np.eye(4), atol=1e-3
  )


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'root_interval_steps': 0}, 'root_interval_steps is 0; expected 1 or'),
    ({'statistics_interval_steps': 0}, 'statistics_interval_steps is 0'),
    ({'momentum': 1.5}, 'momentum is 1.5; expected 0 to 1'),
    ({'second_moment_decay': -1}, 'second_moment_decay is -1'),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(errors.UserError, match=message):
    optimizers.Shampoo.config(**fields).Instantiate()


def test_it_does_not_support_no_op_steps():
  with pytest.raises(
    errors.UserError, match='Shampoo: it does not support no-op steps'
  ):
    optimizers.Shampoo.config(
      **_BASE
    ).Instantiate().check_supports_no_op_steps()
