"""Rotation by position against complex numbers.

Shapes: B batch, T time, N heads, H dims of a head.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.embeddings import rotary_embedding
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

B, T, N, H = 2, 5, 3, 8


def _layer(**fields):
  return rotary_embedding.RotaryPositionalEmbedding.config(
    embedding_dims=H, **fields
  ).Instantiate()


@pytest.mark.parametrize(
  'positions',
  [None, np.arange(T)[None] + 3, [[0, 1, 2, 0, 1], [4, 3, 2, 1, 0]]],
)
@pytest.mark.parametrize('timescales', [(1, 10_000), (2, 50)])
def test_against_complex_numbers(timescales, positions):
  x = random(B, T, N, H)
  shortest, longest = timescales
  layer = _layer(min_timescale=shortest, max_timescale=longest)
  given = None if positions is None else jnp.asarray(positions)
  y = layer.apply({}, x, given)
  positions = np.arange(T)[None] if positions is None else np.asarray(positions)
  want = naive_attention.rotate(x, positions, shortest, longest)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_heads_without_a_dimension_of_heads():
  x = random(B, T, H)
  y = _layer().apply({}, x)
  np.testing.assert_array_equal(y, _layer().apply({}, x[:, :, None])[:, :, 0])


def test_products_depend_on_distances_only():
  query, key = random(1, 1, 1, H), random(1, 1, 1, H, seed=1)
  layer = _layer()

  def product(query_position, key_position):
    q = layer.apply({}, query, jnp.array([[query_position]]))
    k = layer.apply({}, key, jnp.array([[key_position]]))
    return np.sum(q * k)

  np.testing.assert_allclose(product(7, 3), product(104, 100), rtol=1e-4)
  assert abs(product(7, 3) - product(7, 5)) > 1e-3


@pytest.mark.parametrize('cast', [False, True])
def test_the_dtype_of_what_is_rotated(cast):
  # At position 1000 a bfloat16 would be a radian off.
  x = random(1, 1, 1, H).astype(jnp.bfloat16)
  layer = _layer(fprop_dtype=jnp.bfloat16, cast_as_fprop_dtype=cast)
  y = layer.apply({}, x, jnp.array([[1003]]))
  assert y.dtype == (jnp.bfloat16 if cast else jnp.float32)
  want = naive_attention.rotate(np.asarray(x, np.float32), np.array([[1003]]))
  np.testing.assert_allclose(np.asarray(y, np.float32), want, atol=0.02)


def test_dims_go_in_pairs_and_are_those_of_the_heads():
  config = rotary_embedding.RotaryPositionalEmbedding.config(embedding_dims=5)
  with pytest.raises(errors.UserError, match='is 5; expected an even number'):
    config.Instantiate().apply({}, random(1, 2, 1, 5))
  with pytest.raises(errors.UserError, match='is 8, but heads have 4 dims'):
    _layer().apply({}, random(1, 2, 1, 4))


def test_steps():
  x = random(B, T, N, H)
  whole = _layer().apply({}, x)
  for t in range(T):
    y = _layer().apply({}, x[:, t], t, method='extend_step')
    np.testing.assert_allclose(y, whole[:, t], rtol=1e-5, atol=1e-5)
  # A window of positions, of which the first ones are before the sequence.
  window = jnp.concatenate([jnp.ones_like(x[:, :2]), x[:, :2]], axis=1)
  y = _layer().apply({}, window, jnp.array([1, 1]), method='extend_step')
  np.testing.assert_allclose(y[:, 2:], whole[:, :2], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(y[:, 0], window[:, 0])
  y = _layer().apply({}, x[:, 3, 0], 3, method='extend_step')
  np.testing.assert_allclose(y, whole[:, 3, 0], rtol=1e-5, atol=1e-5)
