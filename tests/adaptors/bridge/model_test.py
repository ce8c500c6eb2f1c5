"""Tests of Lingvo's FProp as a model: variables, gradients, updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.bridge.model import BridgedModel
from adaptors.bridge.scoped_variables import jax_path
from pax_compat import base_layer, errors
from pax_compat.base_layer import NON_TRAINABLE, PARAMS, ROW_PROBES
from pax_compat.nested_map import NestedMap
from tests.adaptors.bridge import small_task

VALUES = small_task.values()


def _compute(task, theta, batch):
  """Three metrics; the table has a sparse gradient, and `w` a dense one."""
  tf = lingvo_runtime.module('lingvo.compat')
  rows = tf.nn.embedding_lookup(theta.table, batch.ids)
  if not task.do_eval:
    task.vars.count.assign_add(tf.reduce_sum(batch.x))
  loss = tf.reduce_sum(theta.w * rows * batch.x)
  return {
    'loss': (loss, tf.reduce_sum(tf.ones_like(batch.ids))),
    'double': (2.0 * loss, 1.0),
    'other': (tf.reduce_sum(tf.square(theta.w)), 1.0),
  }


def _model(compute=_compute, **fields):
  task = LingvoTask(small_task.params(compute))
  return BridgedModel.config(lingvo_task=task, **fields).Instantiate()


def _batch():
  # Inputs add example weights, which Lingvo tasks do not know.
  return NestedMap(small_task.batch(), eval_sample_weights=np.ones(2))


@pytest.fixture(scope='module')
def model():
  return _model(loss_names=('loss', 'double'))


def _variables(step=3):
  return {
    PARAMS: {k: VALUES[k] for k in ('w', 'table')},
    NON_TRAINABLE: {'count': VALUES['count'], 'global_step': np.int32(step)},
  }


def _apply(model, variables, mutable=(NON_TRAINABLE,)):
  return model.apply(
    variables,
    _batch(),
    rngs={base_layer.RANDOM: jax.random.key(0)},
    mutable=list(mutable),
  )


def _loss_of(model, of):
  """Returns a function of params and probes that also returns updates."""

  def loss(params, probes):
    variables = {**_variables(), PARAMS: params, ROW_PROBES: probes}
    (metrics, _), written = _apply(model, variables)
    return of(metrics), written[NON_TRAINABLE]

  return loss


def _probes(model):
  shapes = jax.eval_shape(
    lambda b: model.init_boxed(jax.random.key(0), b), _batch()
  )[ROW_PROBES]
  return jax.tree.map(lambda s: jnp.zeros(s.shape), shapes)


def test_variables_start_as_in_lingvo(model):
  variables = model.init_boxed(jax.random.key(0), _batch())
  boxes = variables[PARAMS]
  assert sorted(boxes) == ['table', 'w']
  assert boxes['table'].meta.shape == (5, 3)
  values = base_layer.unbox(variables)
  np.testing.assert_array_equal(values[PARAMS]['w'], [1, 1, 1])
  assert values[NON_TRAINABLE] == {'count': 0, 'global_step': 0}
  assert values[NON_TRAINABLE]['global_step'].dtype == jnp.int32
  assert list(variables[ROW_PROBES]) == ['table']
  assert variables[ROW_PROBES]['table'].counts.shape == (5,)


def test_gradients_of_several_losses(model):
  """Gradients add up over losses; row statistics are of one loss."""
  loss = _loss_of(model, lambda m: 3.0 * m['loss'][0] + 0.5 * m['double'][0])
  grad = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
  params = _variables()[PARAMS]
  (by_param, by_probe), written = grad(params, _probes(model))
  batch = small_task.batch()
  rows, of_rows = VALUES['table'][batch['ids']], VALUES['w'] * batch['x']
  table = np.zeros([5, 3])
  np.add.at(table, batch['ids'], 4.0 * of_rows)
  np.testing.assert_allclose(by_param['table'], table, rtol=1e-6)
  np.testing.assert_allclose(
    by_param['w'], 4.0 * (rows * batch['x']).sum(0), rtol=1e-6
  )
  assert written == {'count': 7 + 10, 'global_step': 4}
  assert list(by_probe) == ['table']


@pytest.mark.parametrize('factor', [1.0, -3.0])
def test_row_statistics_are_of_the_computed_gradient(model, factor):
  loss = _loss_of(model, lambda m: factor * m['loss'][0])
  params = _variables()[PARAMS]
  statistics, _ = jax.grad(loss, 1, has_aux=True)(params, _probes(model))
  batch = small_task.batch()
  squares = np.square(factor * VALUES['w'] * batch['x']).sum()
  np.testing.assert_array_equal(statistics['table'].counts, [0, 0, 0, 0, 2])
  np.testing.assert_allclose(
    statistics['table'].sum_squares, squares, rtol=1e-6
  )


@pytest.mark.parametrize(
  ('of', 'words'),
  [
    (lambda m: m['other'][0], 'small: other cannot be differentiated'),
    (lambda m: m['loss'][1], 'the weight of loss cannot be differentiated'),
  ],
)
def test_gradients_of_anything_else_are_refused(model, of, words):
  loss = _loss_of(model, of)
  with pytest.raises(errors.UserError, match=words + '.*loss, double only'):
    jax.grad(loss, has_aux=True)(_variables()[PARAMS], _probes(model))


def test_evaluation_writes_nothing(model):
  with base_layer.eval_mode():
    (metrics, per_example), written = _apply(model, _variables())
  assert written[NON_TRAINABLE] == _variables()[NON_TRAINABLE]
  assert not per_example
  assert metrics['loss'][1] == 2
  # The same without a gradient, and without mutable collections.
  (at_training, _), written = _apply(model, _variables(), mutable=())
  assert at_training['loss'] == metrics['loss']
  assert not written


@pytest.mark.parametrize(
  ('names', 'count'), [((), 1), (('weights',), 0), (('src_paddings',), 0)]
)
def test_batches_that_cannot_mark_padding_rows(model, names, count, caplog):
  batch = NestedMap(_batch(), inner={name: np.ones([2]) for name in names})
  rngs = {base_layer.RANDOM: jax.random.key(0)}
  with base_layer.eval_mode():
    model.apply(_variables(), batch, rngs=rngs)
  logged = [r for r in caplog.records if 'padding rows' in r.getMessage()]
  assert len(logged) == count


def test_the_step_of_lingvo_counts_updates_of_weights():
  def compute(task, theta, batch):
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    metrics = small_task.product(task, theta, batch)
    return {**metrics, 'step': (py_utils.GetGlobalStep(), 1.0)}

  model = _model(compute, batches_per_step=(4, 3))
  steps = []
  for step in range(6):
    (metrics, _), written = _apply(model, _variables(step))
    steps.append(int(metrics['step'][0]))
    assert written[NON_TRAINABLE]['global_step'] == step + 1
  assert steps == [0, 0, 1, 2, 3, 3]


def test_random_numbers_follow_from_the_key():
  def compute(task, theta, batch):
    tf = lingvo_runtime.module('lingvo.compat')
    metrics = small_task.product(task, theta, batch)
    return {**metrics, 'drawn': (tf.random.uniform([]), 1.0)}

  model = _model(compute)

  @jax.jit
  def drawn(key):
    rngs = {base_layer.RANDOM: key}
    metrics, _ = model.apply(_variables(), _batch(), rngs=rngs)
    return metrics['drawn'][0]

  keys = [jax.random.key(seed) for seed in (0, 1, 0)]
  first, other, again = (float(drawn(key)) for key in keys)
  assert first == again != other


@pytest.mark.parametrize('platform', ['cpu', 'cuda', 'tpu'])
def test_what_tensorflow_lowers_is_for_any_device(model, platform):
  """TensorFlow itself needs neither a GPU nor a TPU."""

  def loss(params):
    (metrics, _), _ = _apply(model, {**_variables(), PARAMS: params})
    return metrics['loss'][0]

  traced = jax.jit(jax.value_and_grad(loss)).trace(_variables()[PARAMS])
  lowered = traced.lower(lowering_platforms=(platform,)).as_text()
  assert 'stablehlo' in lowered
  assert 'custom_call' not in lowered


@pytest.mark.parametrize(
  ('theta', 'path'),
  [
    ('w', 'w'),
    ('lm.rnns.rnn[0].cell.wm', 'lm/rnns/rnn_0/cell/wm'),
    ('emb.wm[12]', 'emb/wm_12'),
  ],
)
def test_paths_of_variables(theta, path):
  assert jax_path(theta) == path
