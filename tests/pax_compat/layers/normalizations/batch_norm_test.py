"""Batch normalisation against its formula, on one device and on eight.

Shapes: B batch, T time, D features.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import NON_TRAINABLE, PARAMS, SUMMARIES, WeightInit
from pax_compat.layers.normalizations import norm_layers

B, T, D = 4, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(2, 3, (B, T, D)).astype(np.float32)
VALID = np.arange(T) < np.array([[5], [2], [1], [0]])
PADDINGS = (1 - VALID).astype(np.float32)
VARIABLES = {
  PARAMS: {
    'beta': np.array([1.0, -1.0, 0.5], np.float32),
    'gamma': np.array([0.5, 0.0, -2.0], np.float32),
  },
  NON_TRAINABLE: {
    'moving_mean': np.array([1.0, 2.0, 3.0], np.float32),
    'moving_variance': np.array([4.0, 1.0, 0.5], np.float32),
  },
}


def _layer(**fields):
  return norm_layers.BatchNorm.config(dim=D, **fields).Instantiate()


def _train(layer, x, paddings=None, variables=VARIABLES):
  """Returns the output and the moving averages after it."""
  y, updates = layer.apply(variables, x, paddings, mutable=[NON_TRAINABLE])
  return np.asarray(y, np.float32), updates[NON_TRAINABLE]


def _normalised(x, mean, variance, scaled=True):
  y = (x - mean) / np.sqrt(variance + 0.001)
  if scaled:
    y = y * (1 + VARIABLES[PARAMS]['gamma']) + VARIABLES[PARAMS]['beta']
  return y


def _moments(x, valid):
  """Returns mean and variance [D] of the rows that are valid, exactly."""
  rows = x[valid].reshape(-1, D).astype(np.float64)
  return rows.mean(0), rows.var(0)


def _moved(moments, decay=0.999):
  """Returns the moving averages after one more batch."""
  return {
    f'moving_{name}': decay * VARIABLES[NON_TRAINABLE][f'moving_{name}']
    + (1 - decay) * value
    for name, value in zip(('mean', 'variance'), moments, strict=True)
  }


def _assert_moved(averages, moments, decay=0.999):
  for name, want in _moved(moments, decay).items():
    np.testing.assert_allclose(averages[name], want, rtol=1e-6)


def test_weights_as_declared():
  variables = _layer(gamma_init=WeightInit.Constant(0.25)).init(
    jax.random.key(0), X
  )
  values = base_layer.unbox(variables)
  first = {k: set(np.ravel(v).tolist()) for k, v in values[PARAMS].items()}
  assert first == {'beta': {0.0}, 'gamma': {0.25}}
  kept = {k: v.tolist() for k, v in values[NON_TRAINABLE].items()}
  assert kept == {'moving_mean': [0] * D, 'moving_variance': [1] * D}


@pytest.mark.parametrize('padded', [False, True])
def test_training_normalises_by_the_batch(padded):
  valid = VALID if padded else np.ones_like(VALID)
  y, averages = _train(_layer(), X, PADDINGS if padded else None)
  moments = _moments(X, valid)
  want = np.where(valid[..., None], _normalised(X, *moments), 0)
  np.testing.assert_allclose(y, want, atol=1e-5)
  _assert_moved(averages, moments)


def test_training_of_images_padded_in_one_dimension():
  x = RNG.normal(size=(B, T, 2, D)).astype(np.float32)
  y, averages = _train(_layer(decay=0.9), x, PADDINGS)
  moments = _moments(x, VALID)
  want = np.where(VALID[..., None, None], _normalised(x, *moments), 0)
  np.testing.assert_allclose(y, want, atol=1e-5)
  _assert_moved(averages, moments, decay=0.9)


def test_evaluation_normalises_by_the_averages():
  with base_layer.eval_mode():
    y, averages = _train(_layer(), X, PADDINGS)
  kept = VARIABLES[NON_TRAINABLE]
  want = _normalised(X, kept['moving_mean'], kept['moving_variance'])
  np.testing.assert_allclose(y, want * VALID[..., None], atol=1e-5)
  jax.tree.map(np.testing.assert_array_equal, averages, kept)


def test_training_as_at_evaluation():
  layer = _layer(force_eval_mode=True)
  y, averages = _train(layer, X)
  kept = VARIABLES[NON_TRAINABLE]
  want = _normalised(X, kept['moving_mean'], kept['moving_variance'])
  np.testing.assert_allclose(y, want, atol=1e-5)
  jax.tree.map(np.testing.assert_array_equal, averages, kept)

  def loss(params):
    return layer.apply({**VARIABLES, PARAMS: params}, X).sum()

  gradients = jax.grad(loss)(VARIABLES[PARAMS])
  np.testing.assert_allclose(gradients['beta'], B * T, rtol=1e-6)
  assert (gradients['gamma'] != 0).all()


def test_training_by_the_averages():
  layer = _layer(use_moving_avg_in_training=True, decay=0.9)
  variables = layer.init(jax.random.key(0), X)
  assert PARAMS not in variables
  kept = {NON_TRAINABLE: VARIABLES[NON_TRAINABLE]}
  y, averages = _train(layer, X, variables=kept)
  moved = _moved(_moments(X, np.ones_like(VALID)), 0.9)
  want = _normalised(X, *moved.values(), scaled=False)
  np.testing.assert_allclose(y, want, atol=1e-5)
  _assert_moved(averages, _moments(X, np.ones_like(VALID)), 0.9)
  with base_layer.eval_mode():
    y, _ = _train(layer, X, variables=kept)
  want = _normalised(X, *kept[NON_TRAINABLE].values(), scaled=False)
  np.testing.assert_allclose(y, want, atol=1e-5)


def test_padded_output_is_left_alone_if_told_so():
  layer = _layer(set_padded_output_to_zero=False)
  y, _ = _train(layer, X, PADDINGS)
  want = _normalised(X, *_moments(X, VALID))
  np.testing.assert_allclose(y, want, atol=1e-5)


def _plain_loss(params, x):
  """A loss of the plain formula over the rows that are valid."""
  rows = x[VALID]
  centred = rows - rows.mean(0)
  deviation = jnp.sqrt(jnp.mean(centred**2, 0) + 0.001)
  y = centred / deviation * (1 + params['gamma']) + params['beta']
  return jnp.sum(jnp.sin(y))


def test_gradients_are_those_of_the_plain_formula():
  def loss(params, x):
    y, _ = _layer().apply(
      {**VARIABLES, PARAMS: params}, x, PADDINGS, mutable=[NON_TRAINABLE]
    )
    return jnp.sum(jnp.where(VALID[..., None], jnp.sin(y), 0))

  got = jax.grad(loss, (0, 1))(VARIABLES[PARAMS], X)
  want = jax.grad(_plain_loss, (0, 1))(VARIABLES[PARAMS], X)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want
  )


@pytest.mark.parametrize('garbage', [1e6, np.inf, np.nan])
def test_padding_has_no_influence_whatever_it_holds(garbage):
  def loss(x):
    y, updates = _layer().apply(VARIABLES, x, PADDINGS, mutable=[NON_TRAINABLE])
    return jnp.sum(jnp.sin(y)), (y, updates)

  run = jax.value_and_grad(loss, has_aux=True)
  want, want_gradient = run(X)
  got, gradient = run(np.where(VALID[..., None], X, garbage))
  jax.tree.map(np.testing.assert_array_equal, got, want)
  np.testing.assert_array_equal(gradient, want_gradient)
  assert (gradient[~VALID] == 0).all()


@pytest.mark.parametrize('paddings', [None, np.ones([B, T])])
def test_a_batch_that_says_nothing_leaves_numbers(paddings):
  x = X if paddings is not None else np.full_like(X, np.inf)
  _, averages = _train(_layer(), x, paddings)
  for name, average in averages.items():
    assert np.isfinite(average).all(), name
  if paddings is None:
    kept = VARIABLES[NON_TRAINABLE]
    jax.tree.map(np.testing.assert_array_equal, averages, kept)


def test_statistics_are_in_single_precision():
  # In bfloat16, which has 8 bits, the mean would swallow the differences.
  x = jnp.asarray(256 + 2 * np.arange(6.0)[:, None] * np.ones(D), jnp.bfloat16)
  layer = _layer(fprop_dtype=jnp.bfloat16)
  y, updates = layer.apply(VARIABLES, x, mutable=[NON_TRAINABLE])
  averages = updates[NON_TRAINABLE]
  assert y.dtype == jnp.bfloat16
  assert averages['moving_mean'].dtype == jnp.float32
  moments = _moments(np.asarray(x, np.float32), np.ones(6, bool))
  np.testing.assert_allclose(
    y.astype(jnp.float32),
    _normalised(np.asarray(x, np.float32), *moments),
    rtol=0.01,
    atol=0.01,
  )
  _assert_moved(averages, moments)


def test_averages_of_weights_in_half_precision_still_move():
  layer = _layer(dtype=jnp.bfloat16)
  variables = base_layer.unbox(layer.init(jax.random.key(0), X))
  assert variables[PARAMS]['gamma'].dtype == jnp.bfloat16
  _, averages = _train(layer, X, variables=variables)
  moments = _moments(X, np.ones_like(VALID))
  for name, value, first in zip(
    ('moving_mean', 'moving_variance'), moments, (0, 1), strict=True
  ):
    want = 0.999 * first + 0.001 * value
    np.testing.assert_allclose(averages[name], want, rtol=1e-5)


def test_summaries():
  def names():
    mutable = [NON_TRAINABLE, SUMMARIES]
    _, updates = _layer().apply(VARIABLES, X, mutable=mutable)
    return set(updates[SUMMARIES])

  moving = {'moving_mean', 'moving_variance'}
  assert names() == {'mean', 'variance', *moving}
  with base_layer.eval_mode():
    assert names() == moving
