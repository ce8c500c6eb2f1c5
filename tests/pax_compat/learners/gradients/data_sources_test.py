"""Gradients by data source, against masked gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers
from pax_compat.layer_core.row_gradients import RowStatistics
from tests.pax_compat.learners import stepping
from tests.pax_compat.learners.stepping import learner

PARAMS = {
  'a': np.array([[1.0, -2.0], [3.0, 4.0]], np.float32),
  'b': np.array([0.5, 1.0], np.float32),
  'x': np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 6.0]], np.float32),
}
METAS = stepping.metas(PARAMS, x={'repeat_prefix': (2,)})
# Of three sources; the last one trains everything.
SOURCES = ['params/a', ['params/b', 'params/x'], '.*']
TRAINED = [{'a'}, {'b', 'x'}, {'a', 'b', 'x'}]


def _gradients(seed):
  rng = np.random.default_rng(seed)
  return {k: np.float32(rng.normal(size=w.shape)) for k, w in PARAMS.items()}


def _batch(source, rows=3):
  selected = np.zeros([rows, len(SOURCES)], np.float32)
  selected[:-1, source] = 1.0  # The last row does not count.
  return {'source_selected': selected, 'ids': np.zeros([rows])}


def _steps(made, sources, gradients, row_statistics=None):
  """Returns weights and metrics after each step, from batches of sources."""

  @jax.jit
  def update(params, state, gradients, batch):
    return made.of(batch).update(
      params,
      state,
      gradients,
      weight_metas=METAS,
      row_statistics=row_statistics,
    )

  params, state, history = PARAMS, stepping.init(made, PARAMS, METAS), []
  for source, gradient in zip(sources, gradients, strict=True):
    params, state, metrics, _ = update(params, state, gradient, _batch(source))
    history.append((params, metrics))
  return history


@pytest.mark.parametrize(
  'fields,optimizer_fields',
  [
    ({}, {}),
    ({}, {'clip_gradient_norm_to_value': 0.5}),
    ({}, {'clip_gradient_single_norm_to_value': 0.3}),
    ({'nonfinite_gradients': 'zero'}, {}),
  ],
)
def test_gradients_are_masked(fields, optimizer_fields):
  """Momentum goes on where a gradient is masked."""
  sources, gradients = [0, 1, 2, 0], [_gradients(i) for i in range(4)]
  config = optimizers.Sgd.config(
    learning_rate=0.1, momentum=0.9, **optimizer_fields
  )
  made = learner(config, bprop_variable_inclusion_by_source=SOURCES, **fields)
  masked = [
    {k: g * (k in TRAINED[source]) for k, g in gradient.items()}
    for source, gradient in zip(sources, gradients, strict=True)
  ]
  wanted = stepping.steps(learner(config, **fields), PARAMS, masked, METAS)
  found = _steps(made, sources, gradients)
  for (params, metrics), (want, _, wanted_metrics) in zip(
    found, wanted, strict=True
  ):
    stepping.assert_trees_close(params, want)
    for name in ('raw_grad_norm', 'clipped_grad_norm'):
      np.testing.assert_allclose(
        metrics[f'learning/{name}'],
        wanted_metrics[f'learning/{name}'],
        rtol=1e-5,
      )


@pytest.mark.parametrize('before', [True, False])
def test_regularization_is_masked(before):
  made = learner(
    stepping.sgd(l2_regularizer_weight=0.1),
    bprop_variable_inclusion_by_source=SOURCES,
    regularize_before_clipping=before,
  )
  zeros = jax.tree.map(np.zeros_like, PARAMS)
  [(params, metrics)] = _steps(made, [0], [zeros])
  want = {**PARAMS, 'a': PARAMS['a'] * (1 - 0.1 * stepping.RATE)}
  stepping.assert_trees_close(params, want)
  norm = 0.1 * np.linalg.norm(PARAMS['a']) if before else 0.0
  np.testing.assert_allclose(metrics['learning/raw_grad_norm'], norm, rtol=1e-5)


def test_norms_of_lookups_are_masked():
  made = learner(bprop_variable_inclusion_by_source=SOURCES)
  statistics = {'a': RowStatistics(jnp.array([2.0, 0.0]), jnp.float32(9.0))}
  gradients = {k: g * (k == 'a') for k, g in _gradients(1).items()}
  for source, norm in ((0, 3.0), (1, 0.0)):
    [(_, metrics)] = _steps(made, [source], [gradients], statistics)
    np.testing.assert_allclose(metrics['learning/raw_grad_norm'], norm)


def test_sources_in_a_multi_task_learner():
  made = learners.MultiTaskLearner.config(
    learners={
      'one': learners.Learner.config(
        optimizer=stepping.sgd(), bprop_variable_inclusion_by_source=['.*']
      )
    }
  ).Instantiate()
  with pytest.raises(errors.UserError, match='which is missing'):
    made.of({'one': {'ids': np.zeros([2])}})
  made.of({'one': {'source_selected': np.ones([2, 1])}})


@pytest.mark.parametrize(
  'batch,message',
  [
    ({'ids': np.zeros([3])}, r'expected a field .source_selected. \[B, 3\]'),
    ({'source_selected': np.zeros([3, 2])}, r'which has the shape \[3, 2\]'),
  ],
)
def test_batches_without_it(batch, message):
  made = learner(bprop_variable_inclusion_by_source=SOURCES)
  with pytest.raises(errors.UserError, match=message):
    made.of(batch)


def test_mistakes():
  made = learner(bprop_variable_inclusion_by_source=['params/a', 'params/c'])
  with pytest.raises(
    errors.UserError, match="'params/c' matches the name of no"
  ):
    made.check_names(['params/a', 'params/b'])
  with pytest.raises(
    errors.UserError, match=r'expected a step of `of\(batch\)`'
  ):
    stepping.step(made, PARAMS, _gradients(1))
  with pytest.raises(errors.UserError, match='is not a regular expression'):
    learner(bprop_variable_inclusion_by_source=['('])


def test_without_sources_it_is_the_learner_itself():
  made = learner()
  assert made.of({'ids': np.zeros([2])}) is made
