"""Facts about the gradients of looked-up tables against a loop in numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.layer_core.row_gradients import (
  lookup_with_row_statistics,
  no_statistics,
)

V, D = 7, 3
IDS = np.array([[1, 1, 4], [6, 1, 4]])
TABLE = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
# The gradient of each looked-up vector.
GRADIENTS = np.random.default_rng(1).normal(size=(2, 3, D)).astype(np.float32)


def _gradients(table, ids, weights):
  def loss(table, probe):
    return jnp.sum(lookup_with_row_statistics(table, ids, probe) * weights)

  return jax.grad(loss, argnums=(0, 1))(table, no_statistics(V))


def _loop():
  """Returns (gradient of the table, counts, sum of squares)."""
  table, counts, squares = np.zeros([V, D]), np.zeros(V), 0.0
  for token, gradient in zip(
    IDS.ravel(), GRADIENTS.reshape(-1, D).astype(np.float64), strict=True
  ):
    table[token] += gradient
    counts[token] += 1
    squares += (gradient**2).sum()
  return table, counts, squares


def _check(table_gradient, statistics):
  table, counts, squares = _loop()
  np.testing.assert_allclose(table_gradient, table, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(statistics.counts, counts)
  np.testing.assert_allclose(statistics.sum_squares, squares, rtol=1e-5)


def test_against_a_loop():
  _check(*_gradients(TABLE, IDS, GRADIENTS))


def test_inside_jit():
  _check(*jax.jit(_gradients)(TABLE, IDS, GRADIENTS))


def test_the_value_and_the_tables_gradient_are_those_of_a_plain_lookup():
  value = lookup_with_row_statistics(TABLE, IDS, no_statistics(V))
  np.testing.assert_array_equal(value, TABLE[IDS])
  plain = jax.grad(lambda t: jnp.sum(t[IDS] * GRADIENTS))(jnp.asarray(TABLE))
  np.testing.assert_allclose(_gradients(TABLE, IDS, GRADIENTS)[0], plain)


def test_facts_of_several_lookups_add_up():
  def loss(probe):
    one = lookup_with_row_statistics(TABLE, IDS, probe)
    other = lookup_with_row_statistics(TABLE, np.array([0, 1]), probe)
    return jnp.sum(one * GRADIENTS) + 2 * jnp.sum(other)

  statistics = jax.grad(loss)(no_statistics(V))
  _, counts, squares = _loop()
  np.testing.assert_array_equal(
    statistics.counts, counts + [1, 1, 0, 0, 0, 0, 0]
  )
  np.testing.assert_allclose(
    statistics.sum_squares, squares + 2 * D * 4, rtol=1e-5
  )
