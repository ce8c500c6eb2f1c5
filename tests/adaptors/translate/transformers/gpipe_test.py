"""GPipe's language model against real Lingvo, which runs it as a pipeline.

The stock experiment in small: four parts of one layer each, four micro-batches.
Shapes: B batch, T time.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, Report
from pax_compat import base_layer, learners
from pax_compat.layers import PipelinedTransformer
from pax_compat.nested_map import NestedMap
from tests.adaptors import small_experiments
from tests.adaptors.translate import parity, tiny_task

pytest.importorskip('lingvo')

_NAME = 'lm.one_billion_wds.OneBWdsGPipeTransformerWPM'
_STEPS = 20


@pytest.fixture(scope='module')
def stock():
  """Params of the stock experiment in small."""
  return small_experiments.task_params(_NAME)


def _batch(params, seed=0):
  return NestedMap(small_experiments.batch(params, seed))


def _run_lingvo(params, batch, do_eval):
  """Returns weights, metrics and gradients of a Lingvo task's loss, by name."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with (
    small_experiments.graph_of_lingvo() as tf,
    fed_task.session(optimized=False) as session,
  ):
    with lingvo_runtime.cluster(do_eval=do_eval):
      task = params.Instantiate()
      tensors = py_utils.NestedMap(
        {name: tf.constant(array) for name, array in batch.items()}
      )
      metrics, _ = task.FPropTower(task.theta, tensors)
      variables = dict(task.vars.FlattenItems())
      gradients = tf.gradients(metrics['loss'][0], list(variables.values()))
    session.run(tf.global_variables_initializer())
    fetched = {
      'weights': variables,
      'metrics': {
        k: list(map(tf.convert_to_tensor, v)) for k, v in metrics.items()
      },
      'gradients': {
        path: tf.convert_to_tensor(gradient)
        for path, gradient in zip(variables, gradients, strict=True)
      },
    }
    return session.run(fetched)


@pytest.mark.parametrize('do_eval', [False, True])
def test_loss_metrics_and_gradients(stock, do_eval):
  params = stock.Copy()
  params.input.num_samples = 1  # Lingvo asks for it at evaluation.
  params.lm.stack.Set(num_encoder_layers=2, splits=2)
  if do_eval:
    # Parts that are not alike, and labels that are not certain.
    layers = lingvo_runtime.module('lingvo.core.layers')
    params.lm.stack.splits = [1, 1, 2]
    params.lm.stack.label_smoothing = layers.UniformLabelSmoother.Params().Set(
      name='smoother', num_classes=params.lm.vocab_size, uncertainty=0.2
    )
  batch = _batch(params)
  theirs = _run_lingvo(params, batch, do_eval)
  translated, made, state = tiny_task.start(params, batch, theirs['weights'])

  def loss(weights):
    with base_layer.eval_mode(do_eval):
      metrics, _ = made.model.apply({base_layer.PARAMS: weights}, batch)
    return metrics['loss'][0], metrics

  gradients, metrics = jax.jit(jax.grad(loss, has_aux=True))(
    state.mdl_vars[base_layer.PARAMS]
  )
  assert set(theirs['metrics']) <= set(metrics)
  for name, want in theirs['metrics'].items():
    for found, value in zip(metrics[name], want, strict=True):
      parity.assert_close(jnp.float32(found), np.float32(value), 1e-5, name)
  parity.assert_gradients_close(
    translated.variables.to_lingvo(learners.by_path(gradients)),
    theirs['gradients'],
  )


@pytest.mark.exhaustive
def test_twenty_steps(stock):
  """With the experiment's Adam, and a schedule that peaks earlier."""
  params = stock.Copy()
  params.train.lr_schedule.warmup_steps = 10
  data = [_batch(params, seed) for seed in range(_STEPS)]
  run = tiny_task.check(params, data, loss_tolerance=1e-4)
  assert all(tiny_task.moved(run).values())
  assert run.losses[-1] < run.losses[0]


def _issues(params):
  """Returns what a translation of a task complains about."""
  report = Report()
  registry.translate(ParamsView(params.Copy(), 'task', report))
  return list(map(str, report.issues))


def _outputs(translated, theta, batch):
  """Returns the per-example outputs of a translation with these weights."""
  model = translated.config.model.Instantiate()
  weights = translated.variables.to_jax(theta)
  _, outputs = jax.jit(lambda w: model.apply({base_layer.PARAMS: w}, batch))(
    weights
  )
  return outputs.scores


def test_a_pipeline_over_a_mesh_of_devices(stock):
  """It has the numbers of the plain stack, which are Lingvo's."""
  params = stock.Copy()
  params.lm.stack.Set(splits=2, num_micro_batches=2, micro_batch_size=2)
  plain = tiny_task.translate(params)
  params.lm.stack.device_mesh = np.arange(4).reshape(2, 2)
  pipelined = tiny_task.translate(params)
  config = pipelined.config.model
  assert config.ici_mesh_shape == [2, 2]
  assert config.mesh_axis_names == ['stage', 'data']
  stack = config.lm_tpl.stacked_transformer_tpl
  assert stack.cls is PipelinedTransformer
  assert stack.pipeline_stage.num_layers == 2
  # Without a mesh in effect, nothing is split.
  rng, batch = np.random.default_rng(0), _batch(params)
  model = plain.config.model.Instantiate()
  shapes = jax.eval_shape(
    lambda: base_layer.unbox(model.init(jax.random.key(0), batch))
  )
  theta = plain.variables.to_lingvo(
    {
      path: rng.normal(scale=0.3, size=x.shape).astype(np.float32)
      for path, x in learners.by_path(shapes[base_layer.PARAMS]).items()
    }
  )
  scores = _outputs(pipelined, theta, batch)
  parity.assert_close(scores, _outputs(plain, theta, batch), 1e-5, 'scores')
  back = pipelined.variables.to_lingvo(
    learners.by_path(pipelined.variables.to_jax(theta))
  )
  assert set(back) == set(theta)
  for path, value in theta.items():
    np.testing.assert_array_equal(back[path], value)


def test_dropout_that_the_stock_experiment_has_not(stock):
  params = stock.Copy()
  stack = params.lm.stack
  stack.emb_tpl.input_dropout_prob = 0.1
  stack.encoder_tpl.tr_atten_tpl.Set(
    atten_dropout_prob=0.2, residual_dropout_prob=0.3
  )
  stack.encoder_tpl.tr_fflayer_tpl.Set(
    relu_dropout_prob=0.4, residual_dropout_prob=0.5
  )
  lm = tiny_task.translate(params).config.model.lm_tpl
  layer = lm.stacked_transformer_tpl.transformer_layer_params_tpl
  np.testing.assert_allclose(
    [
      lm.input_dropout_prob,
      layer.tr_atten_tpl.atten_dropout_prob,
      layer.residual_dropout_prob,
      layer.tr_fflayer_tpl.relu_dropout_prob,
      layer.tr_fflayer_tpl.residual_dropout_prob,
    ],
    [0.1, 0.2, 0.3, 0.4, 0.5],
  )


@pytest.mark.parametrize(
  'fields,message',
  [
    (dict(device_mesh=np.arange(3)), 'stack.device_mesh .*its shape is'),
    (dict(device_mesh=np.zeros([4, 1, 1])), 'stack.device_mesh'),
    (
      dict(device_mesh=np.arange(2), splits=[1, 4]),
      'stack.splits .*parts of different sizes',
    ),
    (
      dict(splits=[1, 2]),
      'stack.splits .*increasing ends of parts, the last one 4',
    ),
    (dict(num_decoder_layers=1), 'stack.num_decoder_layers'),
    (dict(packed_input=True), 'stack.encoder_tpl.packed_input'),
  ],
)
def test_stacks_that_are_refused(stock, fields, message):
  params = stock.Copy()
  params.lm.stack.Set(**fields)
  issues = _issues(params)
  assert re.search(message, '; '.join(issues)), issues


def test_what_nobody_has_translated_is_named(stock):
  gpipe = lingvo_runtime.module('lingvo.core.layers_with_gpipe')
  params = stock.Copy()
  params.lm.stack = gpipe.GPipeEvolvedTransformerStack.Params().Set(
    name='stack', num_encoder_layers=1
  )
  message = '; '.join(_issues(params))
  assert 'stack.encoder_tpl (' in message
  assert 'GPipeEvolvedTransformerEncoderLayer' in message


def test_the_layout_is_that_of_the_model(stock):
  model = lingvo_runtime.module('lingvo.tasks.lm.model')
  params = model.LanguageModel.Params().Set(
    name='lm', lm=stock.lm.Copy(), input=stock.input.Copy()
  )
  issues = _issues(params)
  message = 'takes [batch, time], but is given [time, batch]'
  assert any(message in issue for issue in issues)
