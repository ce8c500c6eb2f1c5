"""Tests of the layers that draw random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers import stochastics


def _rngs(seed=0):
  return {base_layer.RANDOM: jax.random.key(seed)}


def _dropped(x, keep_prob, seed=0, **fields):
  config = stochastics.Dropout.config(keep_prob=keep_prob, **fields)
  return config.Instantiate().apply({}, x, rngs=_rngs(seed))


def test_the_right_share_stays_and_is_scaled_up():
  x = jnp.full([100, 100], 3.0)
  y = np.asarray(_dropped(x, 0.7))
  kept = y != 0
  np.testing.assert_allclose(y[kept], 3.0 / 0.7, rtol=1e-6)
  # The share of 10,000 draws has a standard error of 0.46%.
  assert abs(kept.mean() - 0.7) < 0.02
  # Neither rows nor columns go as a whole.
  assert kept.mean(0).max() < 1 and kept.mean(1).max() < 1


def test_another_key_drops_others():
  x = jnp.ones(100)
  assert not np.array_equal(_dropped(x, 0.5, 0), _dropped(x, 0.5, 1))


def test_the_dtype_stays():
  assert _dropped(jnp.ones(4, jnp.bfloat16), 0.5).dtype == jnp.bfloat16


def test_does_nothing_and_draws_nothing_at_evaluation_or_when_all_stay():
  x = jnp.arange(4.0)
  half = stochastics.Dropout.config(keep_prob=0.5).Instantiate()
  with base_layer.eval_mode():
    np.testing.assert_array_equal(half.apply({}, x), x)
  everything = stochastics.Dropout.config().Instantiate()
  np.testing.assert_array_equal(everything.apply({}, x), x)


def test_drops_at_evaluation_if_told_to():
  with base_layer.eval_mode():
    y = _dropped(jnp.ones([100]), 0.5, dropout_at_eval=True)
  assert 0 < (np.asarray(y) == 0).mean() < 1


@pytest.mark.parametrize(
  'fields',
  [
    {'noise_shape': (20, 1, 5)},
    {'noise_shape_broadcast_dims': [1]},
    {'noise_shape_broadcast_dims': [-2]},
    {'noise_shape': [20, 30, 5], 'noise_shape_broadcast_dims': [1]},
  ],
)
def test_elements_go_together_along_a_dimension_that_is_broadcast(fields):
  kept = np.asarray(_dropped(jnp.ones([20, 30, 5]), 0.5, **fields)) != 0
  assert (kept == kept[:, :1]).all()
  # Along the other dimensions they do not.
  assert kept.any(0).all() and not kept.all(0).any()
  assert (kept.any(2) & ~kept.all(2)).any()


def test_a_noise_of_another_shape_is_an_error():
  x = jnp.ones([2, 3])
  with pytest.raises(errors.UserError, match=r'noise_shape is \[2, 2\]'):
    _dropped(x, 0.5, noise_shape=[2, 2])
  with pytest.raises(errors.UserError, match='names dimension 2 of 2'):
    _dropped(x, 0.5, noise_shape_broadcast_dims=[2])


def test_what_is_drawn_can_be_transposed():
  square, oblong = jnp.ones([2, 3, 5, 5]), jnp.ones([2, 3, 5, 4])
  y = _dropped(square, 0.5, transpose_qk=True)
  np.testing.assert_array_equal(y, _dropped(square, 0.5).swapaxes(2, 3))
  y = _dropped(oblong, 0.5, transpose_qk=True)
  np.testing.assert_array_equal(y, _dropped(oblong, 0.5))


@pytest.mark.parametrize('probability', [0.0, -0.1, 1.1])
def test_a_probability_out_of_range_is_an_error(probability):
  with pytest.raises(errors.UserError, match='Dropout.keep_prob is'):
    _dropped(jnp.ones(3), probability)
  with pytest.raises(errors.UserError, match='survival_prob is'):
    _residual(jnp.ones(3), jnp.ones(3), survival_prob=probability)


def _residual(x, branch, **fields):
  layer = stochastics.StochasticResidual.config(**fields).Instantiate()
  return layer.apply({}, x, branch, rngs=_rngs())


def test_a_residual_branch_survives_for_whole_examples():
  x = jnp.full([1000, 3], 5.0)
  branch = jnp.arange(1.0, 4.0) * jnp.ones([1000, 1])
  y = _residual(x, branch, survival_prob=0.8, residual_weight=0.5)
  added = np.asarray(y - x)
  survived = added[:, 0] != 0
  want = 0.5 * np.arange(1.0, 4.0) / 0.8 * survived[:, None]
  np.testing.assert_allclose(added, want, rtol=1e-5)
  # The share of 1,000 draws has a standard error of 1.3%.
  assert abs(survived.mean() - 0.8) < 0.05


def test_a_residual_branch_is_added_as_it_is_at_evaluation_or_if_all_survive():
  x, branch = jnp.ones([4, 2]), jnp.arange(8.0).reshape(4, 2)
  want = x + 0.3 * branch
  y = _residual(x, branch, residual_weight=0.3)
  np.testing.assert_allclose(y, want, rtol=1e-6)
  with base_layer.eval_mode():
    y = _residual(x, branch, residual_weight=0.3, survival_prob=0.5)
  np.testing.assert_allclose(y, want, rtol=1e-6)
