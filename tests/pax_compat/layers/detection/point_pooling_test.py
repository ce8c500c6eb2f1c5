"""Tests of poolings of points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layers.detection import point_pooling

# Of two clouds of three points, the second one all padding.
_PADDINGS = np.array([[0.0, 0, 1], [1, 1, 1]])
_FEATURES = np.array([[[1.0, 5], [3, 5], [9, 9]]] * 2)


@pytest.mark.parametrize(
  ('pool', 'pooled', 'gradient'),
  [
    (point_pooling.padded_max, [3, 5], [[0, 0.5], [1, 0.5], [0, 0]]),
    (point_pooling.padded_sum, [4, 10], [[1, 1], [1, 1], [0, 0]]),
    (point_pooling.padded_mean, [2, 5], [[0.5, 0.5], [0.5, 0.5], [0, 0]]),
  ],
)
def test_padding_is_neither_pooled_nor_trained(pool, pooled, gradient):
  """Of equal largest values each has a share of the gradient."""

  @jax.jit
  def total(features):
    outputs = pool(features, jnp.asarray(_PADDINGS))
    return jnp.sum(outputs), outputs

  grads, outputs = jax.grad(total, has_aux=True)(jnp.asarray(_FEATURES))
  np.testing.assert_allclose(outputs, [pooled, [0, 0]])
  np.testing.assert_allclose(grads, [gradient, np.zeros([3, 2])])


def test_the_maximum_has_a_gradient_where_rounding_hides_it():
  """No element equals a maximum that was rounded differently."""
  x = jnp.array([1.0, 2.0, 0.5])
  shares = point_pooling._shares(x, jnp.nextafter(jnp.max(x), 9.0), 0)
  np.testing.assert_array_equal(shares, [0, 1, 0])
