"""Tests of dropout."""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.layers import stochastics


def _dropped(x, keep_prob, seed=0):
  layer = stochastics.Dropout.config(keep_prob=keep_prob).Instantiate()
  return layer.apply({}, x, rngs={base_layer.RANDOM: jax.random.key(seed)})


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
