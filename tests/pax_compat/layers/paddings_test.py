"""Tests of what layers do with paddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import paddings

X = np.arange(12.0, dtype=np.float32).reshape(2, 3, 2)
PADDINGS = np.array([[0, 0, 1], [0, 1, 1]], np.float32)


@pytest.mark.parametrize('shape', [(2, 3), (2, 3, 1), (1, 3), (2,), ()])
def test_paddings_get_the_rank_of_the_inputs(shape):
  expanded = paddings.expand_paddings(jnp.ones(shape), X)
  assert expanded.ndim == 3
  assert expanded.shape[: len(shape)] == shape


@pytest.mark.parametrize('shape', [(3, 2), (2, 2), (2, 3, 2, 1)])
def test_paddings_that_do_not_fit_are_an_error(shape):
  with pytest.raises(errors.UserError, match='do not fit inputs of shape'):
    paddings.expand_paddings(jnp.ones(shape), X)


def test_padded_positions_are_filled():
  want = X.copy()
  want[0, 2] = want[1, 1:] = -7
  y = paddings.apply_paddings(X, PADDINGS, -7)
  np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize('garbage', [np.nan, np.inf])
def test_padded_positions_have_no_gradient(garbage):
  def loss(x):
    return jnp.sum(paddings.apply_paddings(x, PADDINGS) ** 2)

  x = np.where(PADDINGS[..., None] > 0, garbage, X)
  valid = 1 - PADDINGS[..., None]
  np.testing.assert_array_equal(jax.grad(loss)(x), 2 * X * valid)


def test_the_dtype_stays():
  y = paddings.apply_paddings(X.astype(jnp.bfloat16), PADDINGS)
  assert y.dtype == jnp.bfloat16
