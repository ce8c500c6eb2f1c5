"""Bridged tasks whose training differs, against Lingvo's own steps."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity.batches import nested
from pax_compat import errors
from tests.adaptors.bridge import family_parity, small_task, task_test
from tests.adaptors.translate import parity, tiny_task
from tests.adaptors.translate.tiny_task import learner, optimizer

TOLERANCE = 1e-5


def _run_lingvo(params, batches):
  """Returns variables and their averages after each step, and at the start."""
  variables, averages = [], []
  with fed_task.build(params, batches[0], optimized=False) as made:
    task, run = made.task, made.session.run
    averaged = {}
    if task.ema:
      averaged = {k: task.ema.average(v) for k, v in made.variables.items()}
      averaged = {k: v for k, v in averaged.items() if v is not None}
    made.start()
    variables.append(run(made.variables))
    for batch in batches:
      run([task.train_op, task.loss], made.feed_dict(batch))
      variables.append(run(made.variables))
      averages.append(run(averaged))
  return variables, averages


def check(params, batches):
  """Holds the variables after each step against Lingvo's, and the averages.

  Returns:
    Lingvo's variables before and after each step, and its averages.
  """
  variables, averages = _run_lingvo(params, batches)
  translated = bridge_task.bridge_task(params, params.name)
  bridged = family_parity.Bridged(translated, batches[0], jax.devices()[:1])
  made = bridged.program
  state = bridged.state(variables[0])
  for step, batch in enumerate(batches):
    state, _ = made.train_step(state, nested(batch))
    _assert_close(bridged, state.mdl_vars, variables[step + 1], step)
    if made.learner.has_ema:
      found = made.eval_vars(state, use_ema=True)
      _assert_close(bridged, found, averages[step], f'average after {step}')
  return variables, averages


def _assert_close(bridged, mdl_vars, wanted, what):
  found = bridged.theta(*mdl_vars.values())
  for path, value in wanted.items():
    parity.assert_close(found[path], value, TOLERANCE, f'{path}, {what}')


@pytest.mark.parametrize(
  'added,moving',
  [(None, True), pytest.param(True, None, marks=pytest.mark.slow)],
)
def test_averages_of_batch_norm(added, moving):
  """With an optimizer that accumulates, too."""
  accumulator = optimizer('Accumulator', optimizer_tpl=optimizer('SGD'))
  params = task_test.own_task(
    optimizer=accumulator.Set(accum_steps=2),
    learning_rate=0.5,
    lr_schedule=tiny_task.schedule('Constant'),
    ema_decay=0.9,
    ema_decay_moving_vars=moving,
  )
  params.norm.add_stats_to_moving_average_variables = added
  batches = [task_test.letters(seed) for seed in range(3)]
  variables, averages = check(params, batches)
  for path in ('norm.moving_mean', 'norm.moving_variance', 'emb.wm[0]'):
    assert np.any(averages[-1][path] != variables[-1][path])
  assert 'letters_seen' not in averages[-1]


def _two_losses(task, theta, batch):
  tf = lingvo_runtime.module('lingvo.compat')
  rows = tf.nn.embedding_lookup(theta.table, batch.ids)
  loss = tf.reduce_mean(tf.square(rows * theta.w - batch.x))
  return {'loss': (loss, 1.0), 'of_table': (tf.reduce_sum(rows**2), 2.0)}


def test_learners_of_different_losses():
  """Regularization skips rows that a learner's own loss does not look up."""
  params = small_task.params(_two_losses)
  params.train.learner = [
    learner(bprop_variable_filter='/w/'),
    learner(
      name='of_table',
      bprop_variable_filter='table',
      learning_rate=0.01,
      l2_regularizer_weight=0.5,
      clip_gradient_norm_to_value=0.5,
    ),
  ]
  batch = small_task.batch()
  variables, _ = check(params, [batch, {**batch, 'ids': batch['ids'] - 2}])
  moved = np.any(variables[-1]['table'] != variables[0]['table'], axis=1)
  np.testing.assert_array_equal(moved, [False, False, True, False, True])


def test_a_loss_that_is_unknown():
  params = small_task.params(_two_losses)
  params.train.learner = learner(name='of_tabel')
  translated = bridge_task.bridge_task(params, 'small')
  with pytest.raises(errors.UserError, match='did you mean: of_table'):
    family_parity.Bridged(translated, small_task.batch(), jax.devices()[:1])


def _distillation():
  """Returns Params of a task whose student learns from a teacher."""
  tf = lingvo_runtime.module('lingvo.compat')
  module = lingvo_runtime.module('lingvo.core.distillation_task')

  class Distilled(module.DistillationTask):
    """Compares what both predict."""

    def ComputeDistillationLoss(self, theta, predictions, batch):
      distance = predictions.teacher - predictions.student
      return {'loss': (tf.reduce_mean(tf.square(distance)), 1.0)}, {}

  params = Distilled.Params().Set(name='distilled')
  task = task_test.own_task()
  params.input = task.input
  params.train.Set(
    learning_rate=0.5,
    optimizer=optimizer('SGD'),
    lr_schedule=tiny_task.schedule('Constant'),
    ema_decay=0.9,
  )
  for name in ('teacher', 'student'):
    own = _without_counter(task.Copy()).Set(input=None, train=None, eval=None)
    params.Set(**{name: own})
  params.distillation_loss_weight = tiny_task.schedule('Constant', value=0.25)
  return params


def _without_counter(params):
  """Returns a task of the letters that is trained by another one."""

  def loss(self, theta, predictions, batch):
    outputs = self.softmax.FProp(
      theta.softmax,
      [predictions],
      class_weights=batch.weights[:, :, None],
      class_ids=batch.labels[:, :, None],
    )
    return {'loss': (outputs.avg_xent, outputs.total_weight)}, {}

  cls = type('Part', (params.cls,), {'ComputeLoss': loss})
  params.cls = cls
  return params


def test_a_teacher_is_not_trained():
  """By the task's own `BProp`."""
  batches = [task_test.letters(seed) for seed in range(2)]
  variables, averages = check(_distillation(), batches)
  first, last = variables[0], variables[-1]
  moved = {path for path in first if np.any(first[path] != last[path])}
  assert 'student.emb.wm[0]' in moved
  weights = {path for path in moved if 'moving_' not in path}
  assert all(path.startswith('student.') for path in weights)
  assert np.any(
    averages[-1]['student.softmax.bias_0'] != last['student.softmax.bias_0']
  )


@pytest.mark.parametrize(
  'body,words',
  [
    (lambda self: None, 'it makes 0 such calls'),
    (lambda self: self._BPropGenTrainOps(self.vars), 'without a graph'),
    (
      lambda self: setattr(self, 'mine', self._BPropForVariables(self.vars)),
      'it sets mine',
    ),
  ],
)
def test_a_bprop_that_does_more_is_refused(body, words):
  params = small_task.params()
  params.cls = type('Changed', (params.cls,), {'BProp': body})
  with pytest.raises(errors.UserError, match=f'Changed.BProp is.*{words}'):
    bridge_task.bridge_task(params, 'small')


def test_metrics_of_each_step_go_to_the_task():
  """`ProcessFPropResults`, without a session."""
  seen = []

  def process(self, sess, global_step, metrics, per_example):
    seen.append((global_step, metrics['loss'][0], per_example))
    if global_step == 2:
      sess.run('x')

  params = small_task.params()
  own = {'__module__': __name__, 'ProcessFPropResults': process}
  params.cls = type('Own', (params.cls,), own)
  translated = bridge_task.bridge_task(params, 'small')
  after_step = translated.config.model.Instantiate().after_step()
  after_step(1, {'loss': (np.float32(0.5), np.float32(1))})
  assert seen == [(1, 0.5, {})]
  with pytest.raises(
    errors.UserError, match='uses sess.run, without a TensorFlow'
  ):
    after_step(2, {'loss': (np.float32(0.5), np.float32(1))})
  own = {'__module__': __name__, 'FilterPerExampleTensors': lambda self, x: x}
  params.cls = type('More', (params.cls,), own)
  with pytest.raises(errors.UserError, match='no per-example'):
    bridge_task.bridge_task(params, 'small')


def test_an_update_by_new_weights_and_accumulators():
  """`PostTrainingStepUpdate` sees the weights after the step, averages it."""
  tf = lingvo_runtime.module('lingvo.compat')
  base_layer = lingvo_runtime.module('lingvo.core.base_layer')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class Adding(base_layer.Accumulator):
    def DefaultValue(self):
      return tf.zeros([])

  def compute(task, theta, batch):
    task.accumulators.sums.SetValue(tf.reduce_sum(batch.x))
    return small_task.product(task, theta, batch)

  def update(task):
    seen = task.vars.w[0] + 0.1 * task.accumulators.sums.GetValue()
    step = tf.cast(py_utils.GetGlobalStep(), tf.float32)
    changed = 0.5 * task.vars.count + seen + step
    return tf.assign(task.vars.count, changed)

  params = small_task.params(
    compute,
    update=update,
    build=lambda task: task.RegisterAccumulator('sums', Adding()),
  )
  params.train.Set(ema_decay=0.5, ema_decay_moving_vars=True)
  variables, _ = check(params, [small_task.batch()] * 3)
  assert len({float(one['count']) for one in variables}) == 4
