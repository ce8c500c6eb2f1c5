"""The whole experiment against real Lingvo: loss, gradients, twenty steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_names, lingvo_runtime
from adaptors.translate import task as task_translation
from pax_compat import base_layer, experiment_sources, learners
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import lingvo_training, parity

_NAME = 'lm.python_docs.TransformerLmTiny'
_STEPS = 20
_ROWS = 8  # Of each batch, so that Lingvo does not take minutes.
_FIELDS = ('ids', 'labels', 'paddings', 'weights', 'word_count')


@pytest.fixture(scope='module')
def experiment():
  """The shipped experiment, by its name."""
  return lingvo_names.find(_NAME, experiment_sources.SourceOptions())


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


def _small_task_params(experiment, **train):
  """Half the layers, for what does not depend on the size."""
  params = _task_params(experiment, **train)
  params.lm.num_trans_layers = 2
  return params


def _optimizer(name, **fields):
  module = lingvo_runtime.module('lingvo.core.optimizer')
  return getattr(module, name).Params().Set(**fields)


def _start(params, trained, batch):
  """Returns the program, and the state with Lingvo's first weights."""
  translated = task_translation.translate_task(params, 'parity')
  made = program.create(
    translated.config, partitioning.create_mesh(None, None), batch
  )
  state = made.init_state(batch)
  weights = jax.tree.map(
    jnp.asarray, translated.variables.to_jax(trained.first)
  )
  assert jax.tree.map(jnp.shape, weights) == jax.tree.map(
    jnp.shape, state.mdl_vars[base_layer.PARAMS]
  )
  state = state.replace(mdl_vars={base_layer.PARAMS: weights})
  return translated, made, state


def _check_training(params, batches):
  """Compares losses, norms, rates and last weights of twenty steps."""
  trained = lingvo_training.train(params, batches)
  translated, made, state = _start(params, trained, batches[0])
  for step, batch in enumerate(batches):
    state, metrics = made.train_step(state, batch)
    for name, expected, tolerance in (
      ('loss', trained.losses, 1e-4),
      ('learning/lr', trained.learning_rates, 1e-6),
      # Adam makes a step of full size of a gradient that is all rounding
      # error, so norms drift apart sooner than losses do.
      ('learning/raw_grad_norm', trained.grad_norms, 1e-2),
    ):
      parity.assert_close(
        metrics[name],
        np.float32(expected[step]),
        min(tolerance, 1e-5) if step == 0 else tolerance,
        f'{name} of step {step}',
      )
  last = translated.variables.to_lingvo(
    learners.by_path(state.mdl_vars[base_layer.PARAMS])
  )
  assert set(last) == set(trained.last)
  return trained, last


def test_loss_metrics_and_gradients_of_the_first_batch(experiment, batches):
  params = _task_params(experiment)
  trained = lingvo_training.train(params, batches[:1])
  translated, made, state = _start(params, trained, batches[0])
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

  gradients = jax.grad(loss)(state.mdl_vars[base_layer.PARAMS])
  parity.assert_gradients_close(
    translated.variables.to_lingvo(learners.by_path(gradients)),
    trained.gradients,
  )


def test_twenty_steps_of_the_experiment(experiment, batches):
  """Adam, its schedule, and a gradient norm that is clipped at first."""
  trained, _ = _check_training(_task_params(experiment), batches)
  assert trained.grad_norms[0] > 1.0  # So that the clipping did something.


def test_twenty_steps_of_sgd(experiment, batches):
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  params = _small_task_params(
    experiment,
    optimizer=_optimizer('SGD'),
    learning_rate=0.1,
    lr_schedule=schedule.Constant.Params().Set(value=0.5),
  )
  trained, last = _check_training(params, batches)
  for path, value in trained.last.items():
    moved = np.linalg.norm(value - trained.first[path])
    assert np.linalg.norm(last[path] - value) <= 1e-2 * max(moved, 1e-3), path


def test_steps_with_regularisation(experiment, batches):
  """L2 reaches only the rows of the table that a batch looks up."""
  params = _small_task_params(experiment, l2_regularizer_weight=1e-2)
  _check_training(params, batches[:8])


def test_a_norm_that_is_clipped_to_zero(experiment, batches):
  params = _small_task_params(experiment, grad_norm_to_clip_to_zero=0.5)
  trained, last = _check_training(params, batches[:3])
  for path, value in trained.first.items():
    np.testing.assert_array_equal(last[path], value, err_msg=path)


def test_variables_go_back_and_forth(experiment):
  variables = experiment.translated.variables
  rng = np.random.default_rng(0)
  made = program.create(
    experiment.task(),
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
