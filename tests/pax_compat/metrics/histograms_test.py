"""Histograms against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.metrics import histograms


@pytest.mark.parametrize('shape', [[1000], [10, 20, 5], [7]])
def test_values_are_counted(shape):
  x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
  found = jax.jit(histograms.histogram)(x)
  counts, _ = np.histogram(x, histograms.NUM_BUCKETS)
  # A value at the edge of a bucket may be rounded into the next one.
  assert np.abs(np.cumsum(found.counts) - np.cumsum(counts)).max() <= 1
  assert found.counts.sum() == x.size
  assert (found.low, found.high) == (x.min(), x.max())
  np.testing.assert_allclose(found.total, x.sum(), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(found.total_squares, (x**2).sum(), rtol=1e-4)


def test_what_is_not_finite_is_left_out():
  x = jnp.array([1.0, jnp.nan, 3.0, jnp.inf, -jnp.inf])
  found = histograms.histogram(x)
  assert (found.counts.sum(), found.counts[0], found.counts[-1]) == (2, 1, 1)
  assert (found.low, found.high, found.total) == (1, 3, 4)


@pytest.mark.parametrize('x', [np.full([3], np.nan), np.zeros([0])])
def test_nothing_to_count(x):
  found = histograms.histogram(jnp.asarray(x, jnp.float32))
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))


def test_values_that_are_all_equal():
  found = histograms.histogram(jnp.full([5], 2, jnp.bfloat16))
  assert (found.low, found.high, found.counts[0]) == (2, 2, 5)
