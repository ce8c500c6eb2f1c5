"""The whole experiment against real Lingvo: loss, gradients, twenty steps."""

import jax
import numpy as np
import pytest

from adaptors.experiments import lingvo_source
from pax_compat import base_layer, experiment_sources, learners
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import lingvo_training, parity, tiny_task

_NAME = 'lm.python_docs.TransformerLmTiny'
_STEPS = 20
_ROWS = 2  # Of each batch, so that Lingvo does not take minutes.
_FIELDS = ('ids', 'labels', 'paddings', 'weights', 'word_count')


@pytest.fixture(scope='module')
def experiment():
  """The shipped experiment, by its name."""
  return lingvo_source.find(_NAME, experiment_sources.SourceOptions())


@pytest.fixture(scope='module')
def batches(experiment):
  """Twenty batches of the experiment's own input, buckets mixed."""
  (config,) = experiment.train_datasets()
  data = config.Instantiate()
  try:
    return [
      NestedMap({k: batch[k][:_ROWS] for k in _FIELDS})
      for batch in (data.get_next() for _ in range(_STEPS))
    ]
  finally:
    data.close()


def _task_params(experiment, **train):
  params = experiment._model.task.Copy()
  params.input = experiment._model.input.Copy()
  params.train.Set(**train)
  return params


def test_attributes_of_the_registered_class(experiment):
  del experiment  # Lingvo is loaded.
  options = experiment_sources.SourceOptions(attributes=('NUM_LAYERS=3',))
  changed = experiment_sources.find(_NAME, options)
  stack = changed.task().model.lm_tpl.stacked_transformer_tpl
  assert stack.num_layers == 3


def test_loss_metrics_and_gradients_of_the_first_batch(experiment, batches):
  params = _task_params(experiment)
  trained = lingvo_training.train(params, batches[:1])
  translated, made, state = tiny_task.start(params, batches[0], trained.first)
  metrics = made.eval_step(state.mdl_vars, batches[0])
  for name in (
    'loss',
    'log_pplx',
    'log_pplx_per_word',
    'fraction_of_correct_next_step_preds',
    'num_predictions',
    'num_words',
  ):
    parity.assert_close(
      metrics[name], np.float32(trained.eval_metrics[name]), 1e-5, name
    )

  def loss(weights):
    metrics, _ = made.model.apply({base_layer.PARAMS: weights}, batches[0])
    return metrics['loss'][0]

  gradients = jax.jit(jax.grad(loss))(state.mdl_vars[base_layer.PARAMS])
  parity.assert_gradients_close(
    translated.variables.to_lingvo(learners.by_path(gradients)),
    trained.gradients,
  )


def test_twenty_steps_of_the_experiment(experiment, batches):
  """Adam, its schedule, and a gradient norm that is clipped at first.

  Of one layer; `lm_training_test` has other learners.
  """
  params = _task_params(experiment)
  params.lm.num_trans_layers = 1
  run = tiny_task.check(params, batches, loss_tolerance=1e-4)
  assert run.norms[0] > 1.0  # So that the clipping did something.


def test_variables_go_back_and_forth(experiment):
  variables = experiment.translated.variables
  rng = np.random.default_rng(0)
  made = program.create(
    experiment.task().Instantiate(),
    partitioning.create_mesh(None, None),
    NestedMap(
      ids=np.zeros([1, 4], np.int32),
      labels=np.zeros([1, 4], np.int32),
      paddings=np.zeros([1, 4], np.float32),
      weights=np.ones([1, 4], np.float32),
    ),
  )
  shapes = learners.by_path(made.abstract_state.mdl_vars[base_layer.PARAMS])
  params = {k: rng.normal(size=s.shape) for k, s in shapes.items()}
  theta = variables.to_lingvo(params)
  back = learners.by_path(variables.to_jax(theta))
  assert set(back) == set(params)
  for path, value in params.items():
    np.testing.assert_array_equal(back[path], value, err_msg=path)
