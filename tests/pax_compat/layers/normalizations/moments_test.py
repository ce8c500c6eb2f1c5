"""Mean and variance of what is valid against numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layers.normalizations.moments import compute_moments

X = np.random.default_rng(0).normal(3, 2, (3, 4, 5)).astype(np.float32)
VALID = np.arange(4) < np.array([[4], [2], [1]])
PADDINGS = 1.0 - VALID


@pytest.mark.parametrize('axes', [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('keepdims', [False, True])
def test_moments(axes, padded, keepdims):
  mean, variance = compute_moments(
    X, PADDINGS if padded else None, axes, keepdims=keepdims
  )
  valid = VALID if padded else np.ones_like(VALID)
  where = np.broadcast_to(valid[..., None], X.shape)
  masked = np.ma.array(X.astype(np.float64), mask=~where)
  want = masked.mean(axes, keepdims=keepdims)
  # Where nothing is valid, both are 0.
  np.testing.assert_allclose(mean, np.ma.filled(want, 0.0), atol=1e-6)
  want = masked.var(axes, keepdims=keepdims)
  np.testing.assert_allclose(variance, np.ma.filled(want, 0.0), atol=1e-5)


def test_cumulative_moments():
  mean, variance = compute_moments(
    X, PADDINGS, [2], cumulative_axis=1, keepdims=True
  )
  assert mean.shape == variance.shape == (3, 4, 1)
  for b in range(3):
    squares = []
    for t in np.flatnonzero(VALID[b]):
      want = X[b, : t + 1].mean()
      squares.append(np.square(X[b, t] - want))
      np.testing.assert_allclose(mean[b, t, 0], want, rtol=1e-5)
      np.testing.assert_allclose(variance[b, t, 0], np.mean(squares), rtol=1e-5)


def test_moments_are_in_single_precision():
  x = jnp.asarray([256, 258, 260], jnp.bfloat16)
  mean, variance = compute_moments(x, None, [0])
  assert mean.dtype == variance.dtype == jnp.float32
  np.testing.assert_allclose([mean, variance], [258, 8 / 3], rtol=1e-6)
