"""Pooling against maxima and means of windows in numpy.

Shapes: B batch, T time, H height, W width, D channels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import poolings

RNG = np.random.default_rng(0)
B, H, W, D = 2, 7, 5, 3
X = RNG.normal(size=(B, H, W, D)).astype(np.float32)
VALID = np.arange(H) < np.array([[7], [4]])
PADDINGS = (1 - VALID).astype(np.float32)


def _before(size, window, stride):
  """Returns how many positions 'SAME' puts before an input of that size."""
  outputs = -(-size // stride)
  return max((outputs - 1) * stride + window - size, 0) // 2


def _windows(size, window, stride, padding):
  """Yields what each window of one dimension sees."""
  before = _before(size, window, stride) if padding == 'SAME' else 0
  last = size - 1 if padding == 'SAME' else size - window
  for start in range(-before, last - before + 1, stride):
    yield np.arange(max(start, 0), min(start + window, size))


def _pooled(x, window, stride, padding, reduce, valid):
  """Returns the pooled x [B, H', W', D] and where all of a window is valid."""
  rows = list(_windows(x.shape[1], window[0], stride[0], padding))
  columns = list(_windows(x.shape[2], window[1], stride[1], padding))
  y = np.zeros([x.shape[0], len(rows), len(columns), x.shape[3]])
  for b, i, j in np.ndindex(*y.shape[:3]):
    seen = [row for row in rows[i] if valid[b, row]]
    if seen:
      y[b, i, j] = reduce(x[b][seen][:, columns[j]], (0, 1))
  return y, np.array([[v[row].all() for row in rows] for v in valid])


REDUCE = {'MAX': np.max, 'AVG': np.mean}


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
@pytest.mark.parametrize('padding', ['SAME', 'VALID'])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize(
  ('window', 'stride'),
  [((2, 2), (2, 2)), ((3, 3), (1, 1)), ((3, 2), (2, 1)), ((1, 2), (3, 2))],
)
def test_pooling(kind, padding, padded, window, stride):
  layer = poolings.Pooling.config(
    window_shape=window,
    window_stride=stride,
    pooling_type=kind,
    padding=padding,
  ).Instantiate()
  y, paddings = layer.apply({}, X, PADDINGS if padded else None)
  valid = VALID if padded else np.ones_like(VALID)
  want, whole = _pooled(X, window, stride, padding, REDUCE[kind], valid)
  if not padded:
    assert paddings is None
    np.testing.assert_allclose(y, want, atol=1e-6)
    return
  if padding == 'SAME' and stride[0] == 1:
    whole = VALID
  np.testing.assert_array_equal(paddings, 1 - whole)
  np.testing.assert_allclose(y, want * whole[..., None, None], atol=1e-6)


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
@pytest.mark.parametrize('garbage', [1e6, np.inf, np.nan])
def test_padding_has_no_influence_whatever_it_holds(kind, garbage):
  layer = poolings.Pooling.config(
    window_shape=(3, 3), window_stride=(1, 1), pooling_type=kind
  ).Instantiate()

  def loss(x):
    y, _ = layer.apply({}, x, PADDINGS)
    return jnp.sum(jnp.sin(y)), y

  run = jax.jit(jax.value_and_grad(loss, has_aux=True))
  x = np.where(PADDINGS[..., None, None] > 0, garbage, X).astype(np.float32)
  jax.tree.map(np.testing.assert_array_equal, run(x), run(X))


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
def test_gradients(kind):
  layer = poolings.Pooling.config(
    window_shape=(2, 1), window_stride=(2, 1), pooling_type=kind
  ).Instantiate()
  x = jnp.array([1.0, 3.0, 5.0, 4.0]).reshape(1, 4, 1, 1)

  @jax.grad
  def gradient(x):
    y, _ = layer.apply({}, x)
    return jnp.sum(y.ravel() * jnp.array([10.0, 20.0]))

  want = {'MAX': [0, 10, 20, 0], 'AVG': [5, 5, 10, 10]}[kind]
  np.testing.assert_array_equal(gradient(x).ravel(), want)


@pytest.mark.parametrize(
  ('kind', 'dtype', 'want_dtype'),
  [
    ('MAX', jnp.bfloat16, jnp.bfloat16),
    ('AVG', jnp.bfloat16, jnp.bfloat16),
    ('MAX', jnp.int32, jnp.int32),
    # A mean of integers is none.
    ('AVG', jnp.int32, jnp.float32),
  ],
)
def test_dtypes(kind, dtype, want_dtype):
  x = jnp.arange(-8, 0).reshape(1, 8, 1, 1).astype(dtype)
  layer = poolings.Pooling.config(
    window_shape=(2, 1), window_stride=(2, 1), pooling_type=kind
  ).Instantiate()
  y, _ = layer.apply({}, x)
  assert y.dtype == want_dtype
  want = np.arange(-7, 0, 2) - (0 if kind == 'MAX' else 0.5)
  np.testing.assert_array_equal(y.astype(jnp.float32).ravel(), want)
  everything = poolings.GlobalPooling.config(
    pooling_dims=[1, 2], pooling_type=kind
  ).Instantiate()
  y = everything.apply({}, x)
  assert y.dtype == want_dtype
  assert y.astype(jnp.float32) == (-1 if kind == 'MAX' else -4.5)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'window_shape': (2,)}, 'window_shape is .2.'),
    ({'window_stride': (0, 1)}, 'window_stride is .0, 1.'),
    ({'pooling_type': 'MIN'}, "'MIN'; expected one of MAX, AVG"),
    ({'padding': 'CAUSAL'}, "'CAUSAL'; expected one of SAME, VALID"),
  ],
)
def test_fields_that_do_not_fit_are_an_error(fields, message):
  config = poolings.Pooling.config(window_shape=(2, 2), window_stride=(2, 2))
  layer = config.set(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.apply({}, X)


def test_truth_values_have_no_maximum():
  layer = poolings.GlobalPooling.config(pooling_type='MAX', pooling_dims=[0])
  with pytest.raises(errors.UserError, match='pooling of bool'):
    layer.Instantiate().apply({}, jnp.ones([2], bool))


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
@pytest.mark.parametrize('keepdims', [False, True])
@pytest.mark.parametrize('dims', [(1,), (1, 2), (2,), (0, 1)])
@pytest.mark.parametrize('padded', [False, True])
def test_global_pooling(kind, keepdims, dims, padded):
  layer = poolings.GlobalPooling.config(
    pooling_type=kind, pooling_dims=dims, keepdims=keepdims
  ).Instantiate()
  valid = np.where(padded, VALID, True)[..., None, None]
  masked = np.ma.array(X, mask=~np.broadcast_to(valid, X.shape))
  want = getattr(masked, {'MAX': 'max', 'AVG': 'mean'}[kind])(
    dims, keepdims=keepdims
  )
  paddings = PADDINGS[..., None, None] if padded else None
  x = np.where(valid, X, np.nan)
  y = layer.apply({}, x, compatible_paddings=paddings)
  np.testing.assert_allclose(y, np.ma.filled(want, 0.0), atol=1e-6)


def test_epsilon_is_added_to_the_number_of_positions():
  layer = poolings.GlobalPooling.config(pooling_dims=[0]).Instantiate()
  assert layer.apply({}, jnp.ones(3), 3.0) == 0.5


def test_global_pooling_of_dimensions_that_are_not_there_is_an_error():
  layer = poolings.GlobalPooling.config(pooling_dims=[-1]).Instantiate()
  with pytest.raises(errors.UserError, match='pooling_dims is .-1.'):
    layer.apply({}, X)


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize(
  ('fields', 'window', 'stride'),
  [
    ({}, 1, 1),
    ({'stride': 2}, 2, 2),
    ({'stride': 3, 'window': 1}, 1, 3),
    ({'window': 3}, 3, 1),
    ({'stride': 2, 'window': 4}, 4, 2),
  ],
)
@pytest.mark.parametrize('rank', [2, 3, 4])
def test_pooling_in_time(kind, padded, fields, window, stride, rank):
  layer = poolings.Pooling1D.config(pooling_type=kind, **fields).Instantiate()
  x = X[(..., *[0] * (4 - rank))]
  y, paddings = layer.apply({}, x, PADDINGS if padded else None)
  valid = VALID if padded else np.ones_like(VALID)
  image = x.reshape(B, H, 1, -1)
  want, _ = _pooled(
    image, (window, 1), (stride, 1), 'SAME', REDUCE[kind], valid
  )
  want = want.reshape(B, -1, *x.shape[2:])
  if padded:
    np.testing.assert_array_equal(paddings, PADDINGS[:, ::stride])
    kept = VALID[:, ::stride] if kind == 'MAX' else np.ones(paddings.shape)
    want = want * kept.reshape(*kept.shape, *[1] * (rank - 2))
  else:
    assert paddings is None
  np.testing.assert_allclose(y, want, atol=1e-6)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'stride': 0}, 'stride is 0'),
    ({'window': -1}, 'window -1'),
    ({'pooling_type': 'SUM'}, "'SUM'; expected one of MAX, AVG"),
  ],
)
def test_fields_in_time_that_do_not_fit_are_an_error(fields, message):
  layer = poolings.Pooling1D.config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.apply({}, X)
