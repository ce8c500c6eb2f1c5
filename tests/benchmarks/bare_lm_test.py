"""Tests of `benchmarks.bare_lm`: its two attentions are the same function.

`lm_step_test` compares it with the translated experiment.
"""

import jax
import numpy as np
import optax
import pytest

from benchmarks import bare_lm

_D, _N, _H, _F, _V = 8, 2, 4, 16, 12


def _weights(rng):
  """Returns random weights of one layer, as `bare_lm.weights_of` does."""

  def normal(*shape):
    return rng.normal(0, 0.3, shape).astype(np.float32)

  def affine(w, b):
    return dict(w=normal(*w), b=normal(*b))

  norm = dict(scale=normal(_D), bias=normal(_D))
  layer = dict(
    norm1=norm,
    **{
      name: affine((_D, _N, _H), (_N, _H)) for name in ('query', 'key', 'value')
    },
    post=affine((_D, _N, _H), (_D,)),
    dim_scale=normal(_H),
    norm2=norm,
    ff1=affine((_D, _F), (_F,)),
    ff2=affine((_F, _D), (_D,)),
  )
  return dict(emb=normal(_V, _D), layers=[layer], out=affine((_D, _V), (_V,)))


def _losses(weights, batch, attention):
  settings = bare_lm.Settings(
    learning_rate=optax.constant_schedule(0.1),
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-6,
    clip_norm=1.0,
    attention=attention,
  )
  init, step = bare_lm.make_step(settings)
  state, losses = init(jax.tree.map(jax.numpy.array, weights)), []
  for _ in range(3):
    state, loss = step(state, batch)
    losses.append(float(loss))
  return losses


def test_both_attentions_train_alike():
  rng = np.random.default_rng(0)
  batch = dict(
    ids=rng.integers(0, _V, (3, 6)),
    labels=rng.integers(0, _V, (3, 6)),
    weights=(rng.random((3, 6)) < 0.8).astype(np.float32),
  )
  weights = _weights(rng)
  plain = _losses(weights, batch, 'plain')
  assert plain == pytest.approx(_losses(weights, batch, 'jax.nn'), rel=1e-5)
  assert plain[2] < plain[0]


def test_a_softmax_without_a_matrix_has_that_of_the_embedding():
  rng = np.random.default_rng(0)
  weights = _weights(rng)
  ids = rng.integers(0, _V, (3, 6))
  batch = dict(ids=ids, labels=ids, weights=np.ones((3, 6), np.float32))
  weights['out']['w'] = weights['emb'].T
  want = _losses(weights, batch, 'plain')[0]
  del weights['out']['w']
  found = _losses(weights, batch, 'plain')[0]
  np.testing.assert_allclose(found, want, rtol=1e-6)


def test_initial_weights_have_the_shapes_of_a_models():
  rng = np.random.default_rng(0)
  want = _weights(rng)
  del want['out']['w']
  found = bare_lm.initial_weights(
    jax.random.key(0), layers=1, dims=_D, hidden=_F, heads=_N, vocab=_V
  )
  assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, want)
