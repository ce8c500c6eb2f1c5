"""Tests of a Lingvo task as a function: inputs, outputs, refusals."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional.functional_task import (
  FunctionalTask,
  on_one_device,
)
from pax_compat import errors
from tests.adaptors.bridge import small_task
from tests.adaptors.translate import tiny_task


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('lingvo.compat')


def _task(compute=small_task.product, do_eval=False, **fields):
  return FunctionalTask(
    small_task.params(compute, **fields), do_eval=do_eval, xla_device='tpu'
  )


def _arguments(tf, task, step=5, seed=(1, 2)):
  # Variables that a test adds to the task start at 0.
  values = {k: tf.zeros(v.shape, v.dtype) for k, v in task.variables.items()}
  values |= {k: tf.constant(v) for k, v in small_task.values().items()}
  batch = {k: tf.constant(v) for k, v in small_task.batch().items()}
  return values, batch, tf.constant(step), tf.constant(seed)


def _forward(tf, task, **settings):
  outputs = task.forward(*_arguments(tf, task, **settings))
  return tf.nest.map_structure(lambda x: x.numpy(), outputs)


def _with_gradients(tf, task, losses=('loss',)):
  outputs = task.with_gradients(losses, *_arguments(tf, task))
  return tf.nest.map_structure(lambda x: x.numpy(), outputs)


def test_metrics_gradients_and_row_statistics(tf):
  """A table's row is looked up twice; TensorFlow does not sum its slices."""

  def compute(task, theta, batch):
    rows = tf.nn.embedding_lookup(theta.table, batch.ids)
    return {
      'loss': (tf.reduce_sum(theta.w * rows * batch.x), 2),
      'other': (tf.reduce_sum(theta.w), tf.constant(3.0)),
    }

  task, batch = _task(compute), small_task.batch()
  values = small_task.values()
  rows = values['table'][batch['ids']]
  (metrics, per_example, updates), gradients, statistics = _with_gradients(
    tf, task, ('loss', 'other')
  )
  loss = (values['w'] * rows * batch['x']).sum()
  np.testing.assert_allclose(metrics['loss'], (loss, 2.0), rtol=1e-6)
  assert metrics['other'] == (1.5, 3.0)
  assert (per_example, updates) == ({}, {})
  of_rows = values['w'] * batch['x']
  table = np.zeros([5, 3])
  np.add.at(table, batch['ids'], of_rows)
  np.testing.assert_allclose(gradients['loss']['table'], table, rtol=1e-6)
  np.testing.assert_allclose(
    gradients['loss']['w'], (rows * batch['x']).sum(0), rtol=1e-6
  )
  np.testing.assert_array_equal(gradients['other']['w'], [1, 1, 1])
  np.testing.assert_array_equal(gradients['other']['table'], np.zeros([5, 3]))
  counts, sum_squares = statistics['loss']['table']
  np.testing.assert_array_equal(counts, [0, 0, 0, 0, 2])
  np.testing.assert_allclose(sum_squares, np.square(of_rows).sum(), rtol=1e-6)
  # A table that a loss does not depend on has no lookups.
  assert statistics['other']['table'][0].tolist() == [0] * 5
  assert sorted(statistics['loss']) == sorted(statistics['other']) == ['table']


def test_trace(tf):
  def compute(task, theta, batch):
    rows = tf.nn.embedding_lookup(theta.table, batch.ids)
    low = tf.cast(tf.cast(rows, tf.bfloat16), tf.float32)
    return {'loss': (tf.reduce_sum(low), 1.0)}

  trace = _task(compute).trace(('loss',), small_task.batch())
  assert trace.sparse_tables == ('table',)
  assert trace.unused == ('w',)
  assert trace.has_bfloat16
  trace = _task().trace(('loss',), small_task.batch())
  assert (trace.sparse_tables, trace.unused) == ((), ('table',))
  assert not trace.has_bfloat16


@pytest.mark.parametrize('do_eval', [False, True])
def test_evaluation_has_per_example_outputs_and_no_updates(tf, do_eval):
  def compute(task, theta, batch):
    if not task.do_eval:
      task.vars.count.assign_add(1.0)
    return {'loss': (tf.reduce_sum(theta.w), 1.0)}

  task = _task(compute, do_eval, update=lambda t: t.vars.count.assign_add(10.0))
  task.task.ComputeLoss = lambda *args: (
    compute(task.task, *args[::2]),
    {'rows': args[2].x, 'text': tf.constant(['a', 'b']), 'one': tf.ones([])},
  )
  _, per_example, updates = _forward(tf, task)
  if do_eval:
    assert list(per_example) == ['rows']
    assert not updates
  else:
    assert not per_example
    assert updates == {'count': 7 + 1 + 10}


def test_layers_get_the_global_step(tf):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def compute(task, theta, batch):
    asked = (
      py_utils.GetGlobalStep(),
      task.global_step,
      py_utils.GetOrCreateGlobalStepVar(),
    )
    return {
      'loss': (tf.reduce_sum(theta.w), 1.0),
      **{str(i): (x, 1.0) for i, x in enumerate(asked)},
    }

  task = _task(compute)
  for step in (3, 4):
    metrics, *_ = _forward(tf, task, step=step)
    assert [metrics[k][0] for k in '012'] == [step] * 3
  counting = _task(compute, task_global_step=True)
  metrics, _, updates = _forward(tf, counting, step=3)
  assert [metrics[k][0] for k in '012'] == [0] * 3
  assert updates == {'small_global_step': 1}


def test_random_numbers_follow_from_the_seed(tf):
  def compute(task, theta, batch):
    return {'loss': (tf.reduce_sum(tf.nn.dropout(theta.w, rate=0.5)), 1.0)}

  task = _task(compute)
  losses = [
    _forward(tf, task, seed=(1, i))[0]['loss'][0] for i in (*range(6), 0)
  ]
  assert losses[0] == losses[-1]
  assert len(set(losses)) > 1
  assert [r.function for r in task.replacements] == ['random_uniform']


def test_lingvo_adds_its_own_noise(tf):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def compute(task, theta, batch):
    theta.w = task.AddVN(theta.w)
    return small_task.product(task, theta, batch)

  params = small_task.params(compute)
  params.vn = py_utils.VariationalNoiseParams(None, True, False)
  params.train.Set(vn_std=0.5, vn_start_step=4)
  task = FunctionalTask(params, do_eval=False, xla_device='tpu')
  clean, noisy, same, other = (
    _forward(tf, task, step=step, seed=(0, seed))[0]['loss'][0]
    for step, seed in ((3, 0), (4, 0), (4, 0), (4, 1))
  )
  product = small_task.batch()['x'] * small_task.values()['w']
  np.testing.assert_allclose(clean, product.mean(), rtol=1e-6)
  assert len({float(x) for x in (clean, noisy, other)}) == 3
  assert noisy == same


def test_an_input_that_cannot_be_built_is_replaced(tf):
  """The task can still use its tokenizer and its settings."""
  params = small_task.params(
    lambda task, theta, batch: {
      'loss': (tf.reduce_sum(theta.w), 1.0),
      'words': (task.input_generator.tokenizer.params.vocab_size, 1.0),
      'rows': (task.params.input.rows, 1.0),
    }
  )
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def refuse(self, params):
    assert not py_utils.IsEagerMode()

  params.input.cls = type('Old', (params.input.cls,), {'__init__': refuse})
  params.input.Define('rows', 17, 'A custom setting.')
  task = FunctionalTask(params, do_eval=False, xla_device='tpu')
  metrics, *_ = _forward(tf, task)
  assert (metrics['words'][0], metrics['rows'][0]) == (64, 17)


def test_accumulators_last_for_a_call(tf):
  base_layer = lingvo_runtime.module('lingvo.core.base_layer')

  class Adding(base_layer.Accumulator):
    def DefaultValue(self):
      return tf.zeros([])

  def compute(task, theta, batch):
    sums = task.accumulators.sums
    sums.SetValue(sums.GetValue() + tf.reduce_sum(batch.x))
    return small_task.product(task, theta, batch)

  def build(task):
    task.RegisterAccumulator('sums', Adding())

  def update(task):
    task.vars.count.assign(task.accumulators.sums.GetValue())

  task = _task(compute, build=build, update=update)
  for _ in range(2):
    _, _, updates = _forward(tf, task)
    assert updates == {'count': 10.0}
    task._compiled.clear()


def _assign_weight(task, theta, batch):
  task.vars.w.assign_add(theta.w)
  return small_task.product(task, theta, batch)


def _kept_from_building(task):
  task.kept = task.vars.w * 2.0


def _own_variable(task):
  task.kept = lingvo_runtime.module('lingvo.compat').Variable(1.0, name='mine')


def _with_kept(task, theta, batch):
  loss, weight = small_task.product(task, theta, batch)['loss']
  tf = lingvo_runtime.module('lingvo.compat')
  return {'loss': (loss + tf.reduce_sum(task.kept), weight)}


@pytest.mark.parametrize(
  ('fields', 'words'),
  [
    (dict(compute=_assign_weight), 'small assigns to the weight w, which'),
    (
      dict(compute=_with_kept, build=_kept_from_building),
      'the value of a variable that a layer has read while it was built',
    ),
    (
      dict(compute=_with_kept, build=_own_variable),
      'small uses mine:0, which was not created by',
    ),
    (
      dict(compute=lambda task, theta, batch: {'los': (theta.w[0], 1.0)}),
      "the loss 'loss' is not a metric of small; did you mean: los",
    ),
  ],
)
def test_what_is_refused(tf, fields, words):
  task = _task(**fields)
  with pytest.raises(errors.UserError, match=words):
    task.trace(('loss',), small_task.batch())
  if 'loss' not in words:
    with pytest.raises(errors.UserError, match=words):
      _forward(tf, task)


def test_a_layer_with_an_update_of_averages_is_refused():
  params = small_task.params()
  own = {'PostEmaUpdate': lambda self: None}
  params.cls = type('Averaging', (params.cls,), own)
  words = 'Averaging, which overrides PostEmaUpdate'
  with pytest.raises(errors.UserError, match=words):
    FunctionalTask(params, do_eval=False, xla_device='tpu')


def test_an_update_that_depends_on_a_weight_sees_the_new_one(tf):
  task = _task(update=lambda t: t.vars.count.assign(t.vars.w[0]))
  _, _, updates = _forward(tf, task)
  assert not updates and task.updates_by_weights
  before = small_task.values()
  after = {**before, 'w': before['w'] + 1.0}
  seed = tf.constant([1, 2])
  batch = small_task.batch()
  updates = task.after_update(before, after, batch, tf.constant(0), seed)
  assert {k: float(v) for k, v in updates.items()} == {'count': 1.5}


def test_meshes_are_of_one_device_in_a_copy():
  params = tiny_task.params()
  params.device_mesh = np.arange(4).reshape(2, 2)
  params.first.device_mesh = [0, 1]
  changed = on_one_device(params)
  assert changed.device_mesh.shape == (1, 1)
  assert changed.first.device_mesh.shape == (1,)
  assert changed.second.device_mesh is None
  assert params.device_mesh.shape == (2, 2)
