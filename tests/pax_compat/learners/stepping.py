"""Learners and their steps, for tests."""

import jax
import numpy as np

from pax_compat import learners, optimizers
from pax_compat.base_layer import WeightHParams

RATE = 0.1


def sgd(**fields):
  """Returns the config of the optimizer whose step is RATE times a gradient."""
  return optimizers.Sgd.config(learning_rate=RATE, **fields)


def learner(optimizer=None, cls=learners.Learner, **fields):
  """Returns a learner, by default with `sgd`."""
  return cls.config(optimizer=optimizer or sgd(), **fields).Instantiate()


def metas(params, **own):
  """Returns metadata of weights, with extra fields by path."""
  return {
    path: WeightHParams(np.shape(w), **own.get(path, {}))
    for path, w in learners.by_path(params).items()
  }


def init(learner, params, weight_metas=None):
  """Returns the initial state."""
  weight_metas = weight_metas or metas(params)
  return jax.jit(lambda p: learner.init(p, weight_metas=weight_metas))(params)


def step(
  learner, params, gradients, state=None, weight_metas=None, row_statistics=None
):
  """Returns the weights, the state and the metrics after one compiled step.

  All norms are among the metrics.
  """
  weight_metas = weight_metas or metas(params)
  if state is None:
    state = init(learner, params, weight_metas)
  update = jax.jit(
    lambda p, s, g, f: learner.update(
      p, s, g, weight_metas=weight_metas, row_statistics=f
    )
  )
  *new, metrics, norms = update(params, state, gradients, row_statistics or {})
  return *new, metrics | norms


def steps(learner, params, gradients, weight_metas=None):
  """Returns the results of `step` for each of several gradients."""
  weight_metas = weight_metas or metas(params)
  state = init(learner, params, weight_metas)
  traces = []

  @jax.jit
  def update(params, state, gradient):
    traces.append(1)
    return learner.update(params, state, gradient, weight_metas=weight_metas)

  history = []
  for gradient in gradients:
    params, state, metrics, norms = update(params, state, gradient)
    history.append((params, state, metrics | norms))
  assert len(traces) == 1, 'one compilation serves all steps'
  return history


def assert_trees_close(got, want, rtol=1e-5, atol=0.0):
  """Fails unless two trees have the same structure and near values."""
  assert jax.tree.structure(got) == jax.tree.structure(want)
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=atol),
    got,
    want,
  )
