"""Embeddings of positions against numpy.

Shapes: B batch, T time, D embedding dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.embeddings import positional_embeddings

TABLE = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
# Two packed sequences of four and of two tokens, and one sequence of six.
POSITION = np.array([[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5]])


def _sinusoids(position, dims):
  """Vaswani et al. 2017, section 3.5, sines before cosines."""
  # The periods go from 2 pi to 2 pi times 10,000, both reached.
  count = dims // 2
  periods = 10_000 ** (np.arange(count) / max(count - 1, 1))
  angles = np.asarray(position)[..., None] / periods
  return np.concatenate([np.sin(angles), np.cos(angles)], -1)


def _sinusoidal(dims, **fields):
  return positional_embeddings.PositionalEmbedding.config(
    embedding_dims=dims, **fields
  ).Instantiate()


def test_sinusoids_of_a_sequence():
  y = _sinusoidal(8).apply({}, 50)
  assert y.shape == (1, 50, 8)
  np.testing.assert_allclose(y[0], _sinusoids(range(50), 8), atol=1e-5)


def test_sinusoids_of_given_positions():
  y = _sinusoidal(8).apply({}, position=POSITION)
  np.testing.assert_allclose(y, _sinusoids(POSITION, 8), atol=1e-5)
  y = _sinusoidal(8).apply({}, 6, POSITION)
  np.testing.assert_allclose(y, _sinusoids(POSITION, 8), atol=1e-5)


def test_an_odd_element_is_zero():
  y = _sinusoidal(5).apply({}, 7)
  np.testing.assert_allclose(y[0, :, :4], _sinusoids(range(7), 4), atol=1e-5)
  np.testing.assert_array_equal(y[0, :, 4], np.zeros(7))


def test_timescales():
  y = _sinusoidal(4, max_timescale=100).apply({}, 5)
  t = np.arange(5)
  want = np.stack([np.sin(t), np.sin(t / 100), np.cos(t), np.cos(t / 100)], -1)
  np.testing.assert_allclose(y[0], want, atol=1e-6)


def test_positions_are_exact_in_low_precision():
  y = _sinusoidal(4, fprop_dtype=jnp.bfloat16).apply(
    {}, position=np.array([[1001]])
  )
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(
    np.asarray(y, np.float32), _sinusoids([[1001]], 4), atol=4e-3
  )


def _trainable(**fields):
  return positional_embeddings.TrainablePositionalEmbedding.config(
    embedding_dims=4, max_seq_length=9, **fields
  ).Instantiate()


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_trained_vectors(style):
  layer = _trainable(lookup_style=style)

  def apply(*args, **kwargs):
    return layer.apply({PARAMS: {'emb_var': TABLE}}, *args, **kwargs)

  np.testing.assert_allclose(apply(5), TABLE[None, :5], rtol=1e-6)
  np.testing.assert_allclose(
    apply(position=POSITION), TABLE[POSITION], rtol=1e-6
  )
  np.testing.assert_allclose(apply(6, POSITION), TABLE[POSITION], rtol=1e-6)
  # A decoding step is one position, which may be a later one.
  step = np.array([[8], [3]])
  np.testing.assert_allclose(apply(position=step), TABLE[step], rtol=1e-6)
  first = layer.init_boxed(jax.random.key(0), 5)
  assert first[PARAMS]['emb_var'].value.shape == (9, 4)


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_trained_vectors_have_the_gradients_of_their_positions(style):
  layer = _trainable(lookup_style=style)
  gradient = jax.grad(
    lambda table: jnp.sum(
      layer.apply({PARAMS: {'emb_var': table}}, position=POSITION)
    )
  )(TABLE)
  counts = [3, 3, 2, 2, 1, 1, 0, 0, 0]
  np.testing.assert_allclose(gradient, np.tile(counts, (4, 1)).T, rtol=1e-6)


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_trained_vectors_scaled(style):
  layer = _trainable(lookup_style=style, scale_sqrt_depth=True)
  variables = {PARAMS: {'emb_var': TABLE}}
  for args, want in (
    ((5,), TABLE[None, :5]),
    ((None, POSITION), TABLE[POSITION]),
  ):
    np.testing.assert_allclose(
      layer.apply(variables, *args), 2 * want, rtol=1e-6
    )


def test_a_sequence_longer_than_the_table():
  with pytest.raises(
    errors.UserError, match='10 positions; .* at most max_seq_length, 9'
  ):
    _trainable().apply({PARAMS: {'emb_var': TABLE}}, 10)


@pytest.mark.parametrize('layer', [_sinusoidal(4), _trainable()])
@pytest.mark.parametrize(
  ('args', 'message'),
  [
    ({}, 'expected a seq_length or positions'),
    ({'position': POSITION[0]}, r'positions have the shape \[6\]; expected'),
  ],
)
def test_arguments_that_do_not_fit(layer, args, message):
  with pytest.raises(errors.UserError, match=message):
    layer.apply({PARAMS: {'emb_var': TABLE}}, **args)


def _two_dimensional(**fields):
  return positional_embeddings.PositionalEmbedding2D.config(
    **{'h': 2, 'w': 3, 'embedding_dims': 8, **fields}
  ).Instantiate()


def test_patches_of_an_image():
  y = _two_dimensional().apply({})
  want = []
  for row in (-1.0, 0.0):
    for column in (-1.5, -0.5, 0.5):
      vector = []
      for p in (row, column):
        # Two frequencies, 1 and 10000 ** -0.5.
        vector += [np.sin(p), np.sin(p / 100), np.cos(p), np.cos(p / 100)]
      want.append(vector)
  assert y.shape == (1, 6, 8)
  np.testing.assert_allclose(y[0], want, atol=1e-6)


def test_tokens_around_patches_have_zeros():
  layer = _two_dimensional(num_prepend_cls_tokens=1, num_append_cls_tokens=2)
  y = layer.apply({}, 9)
  np.testing.assert_array_equal(y[0, [0, 7, 8]], np.zeros([3, 8]))
  np.testing.assert_array_equal(y[:, 1:7], _two_dimensional().apply({}))


@pytest.mark.parametrize(
  ('fields', 'args', 'message'),
  [
    ({'embedding_dims': 6}, {}, 'embedding_dims is 6; .*multiple of 4'),
    ({}, {'seq_length': 7}, 'a sequence of 6 .*; got seq_length 7'),
    ({}, {'position': POSITION}, 'a sequence of 6 in fixed'),
  ],
)
def test_patches_that_do_not_fit(fields, args, message):
  with pytest.raises(errors.UserError, match=message):
    _two_dimensional(**fields).apply({}, **args)
