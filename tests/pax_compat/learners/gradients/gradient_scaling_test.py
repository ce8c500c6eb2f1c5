"""Clipping by global and single norms, against numpy."""

import jax
import numpy as np
import pytest

from pax_compat import errors, optimizers
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import RATE, learner, sgd

PARAMS = {'a': np.ones([2, 2], np.float32), 'b': np.ones(2, np.float32)}
GRADIENTS = {
  'a': np.array([[1.0, -2.0], [0.0, 2.0]], np.float32),  # norm 3
  'b': np.array([4.0, 0.0], np.float32),  # norm 4
}


def _forces(config, gradients=GRADIENTS):
  """Returns the gradients that the step applied, and the metrics."""
  new, _, metrics = stepping.step(learner(config), PARAMS, gradients)
  return jax.tree.map(lambda p, n: (p - n) / RATE, PARAMS, new), metrics


@pytest.mark.parametrize(('limit', 'scale'), [(1.0, 0.2), (10.0, 1.0)])
def test_gradients_are_scaled_down_together(limit, scale):
  forces, metrics = _forces(sgd(clip_gradient_norm_to_value=limit))
  want = jax.tree.map(lambda g: g * scale, GRADIENTS)
  stepping.assert_trees_close(forces, want, rtol=1e-4, atol=1e-6)
  for name, value in (
    ('raw_grad_norm', 5),
    ('clipped_grad_norm', 5 * scale),
    ('grad_scale', scale),
    ('applied_grad_norm', RATE * 5 * scale),
  ):
    np.testing.assert_allclose(metrics[f'learning/{name}'], value, rtol=1e-6)


def test_each_gradient_is_scaled_down():
  forces, metrics = _forces(sgd(clip_gradient_single_norm_to_value=3.5))
  want = {'a': GRADIENTS['a'], 'b': GRADIENTS['b'] * 3.5 / 4}
  stepping.assert_trees_close(forces, want, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(metrics['learning/raw_grad_norm'], 5)
  np.testing.assert_allclose(
    metrics['learning/clipped_grad_norm'], np.hypot(3, 3.5), rtol=1e-6
  )
  assert metrics['learning/grad_scale'] == 1


@pytest.mark.parametrize(
  'field', ['clip_gradient_norm_to_value', 'clip_gradient_single_norm_to_value']
)
def test_gradients_of_zero_are_not_divided_by_their_norm(field):
  zeros = jax.tree.map(np.zeros_like, GRADIENTS)
  forces, metrics = _forces(sgd(**{field: 1.0}), zeros)
  stepping.assert_trees_close(forces, zeros)
  assert metrics['learning/is_valid_step'] == 1


def test_both_kinds_of_clipping_are_refused():
  with pytest.raises(errors.UserError, match='exclude each other'):
    learner(
      sgd(clip_gradient_norm_to_value=1, clip_gradient_single_norm_to_value=1)
    )


def test_moments_see_gradients_after_clipping():
  config = optimizers.Adam.config(
    learning_rate=RATE, beta1=0.8, clip_gradient_norm_to_value=1.0
  )
  _, state, _ = stepping.step(learner(config), PARAMS, GRADIENTS)
  means = [
    leaf
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    if '.mu' in jax.tree_util.keystr(path)
  ]
  want = jax.tree.map(lambda g: 0.2 * g / 5, GRADIENTS)
  stepping.assert_trees_close(means, jax.tree.leaves(want))
