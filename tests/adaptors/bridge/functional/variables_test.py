"""Tests of stand-ins for variables, as layers create and use them."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import variables
from pax_compat import errors
from tests.adaptors.bridge import small_task

VALUES = small_task.values()


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('lingvo.compat')


def _built(params):
  with (
    lingvo_runtime.eager_flag(True),
    lingvo_runtime.cluster(),
    variables.creating(),
  ):
    return params.Instantiate()


@pytest.fixture(scope='module')
def task():
  return _built(small_task.params())


def _called(tf, task, function):
  """Returns a function's result, and the variables that it assigned to."""

  @tf.function(autograph=False)
  def call(values):
    with variables.bound(task, values) as bound:
      result = function(task)
      assigned = {
        path: v.assigned for path, v in bound.items() if v.assigned is not None
      }
    return result, assigned

  result, assigned = call({k: tf.constant(v) for k, v in VALUES.items()})
  return tf.nest.map_structure(lambda x: x.numpy(), (result, assigned))


def test_building_a_layer_allocates_nothing(tf):
  """The variable would have four petabytes."""
  layers = lingvo_runtime.module('lingvo.core.layers')
  layer = layers.ProjectionLayer.Params().Set(
    name='huge', input_dim=10**8, output_dim=10**7, batch_norm=False
  )
  made = _built(layer)
  found = variables.of(made)
  assert list(found) == ['w']
  assert found['w'].name == 'huge/w/var:0'
  assert found['w'].shape.as_list() == [10**8, 10**7]
  assert (found['w'].dtype, found['w'].trainable) == (tf.float32, True)
  assert found['w'].var_params.init.method == 'xavier'
  assert found['w'].num_stacked_dims == 0


def test_stacked_layers_and_repeated_names():
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def build(layer):
    params = layer.vars.w.var_params
    with py_utils.VariableShapePrefixContext(4):
      layer.CreateVariable('stacked', params)
    layer.CreateVariable('again', layer.vars.w.var_params)

  found = variables.of(_built(small_task.params(build=build)))
  assert found['stacked'].shape.as_list() == [4, 3]
  assert found['stacked'].num_stacked_dims == 1
  with variables.creating():
    one, same = (py_utils.CreateVariable('x', _weight([2])) for _ in range(2))
    assert one is same
    with pytest.raises(errors.UserError, match=r'shapes \(2,\) and \(3,\)'):
      py_utils.CreateVariable('x', _weight([3]))


def _weight(shape):
  return lingvo_runtime.module('lingvo.core.py_utils').WeightParams(shape)


def test_theta_and_variables_have_the_values_that_are_passed(tf, task):
  def compute(task):
    return (
      task.theta.w,
      task.vars.w.read_value() * 2,
      tf.reduce_sum(task.vars.table),
      2.0 - task.vars.w / 4.0 + tf.constant(1.0),
      task.vars.w[1:],
    )

  result, assigned = _called(tf, task, compute)
  w = VALUES['w']
  expected = w, w * 2, VALUES['table'].sum(), 3.0 - w / 4.0, w[1:]
  for found, value in zip(result, expected, strict=True):
    np.testing.assert_allclose(found, value)
  assert not assigned


def test_a_read_after_a_write_returns_the_new_value(tf, task):
  def compute(task):
    tf.assign_add(task.vars.count, 2)
    between = task.vars.count.read_value()
    tf.assign_sub(task.vars.count, 1.0)
    tf.assign(task.vars.w, [1, 2, 3])
    return between, task.theta.w

  (between, theta), assigned = _called(tf, task, compute)
  assert between == 9
  # As in a graph of Lingvo's, theta was read before.
  np.testing.assert_array_equal(theta, VALUES['w'])
  assert sorted(assigned) == ['count', 'w']
  assert assigned['count'] == 8
  np.testing.assert_array_equal(assigned['w'], [1, 2, 3])


def test_values_do_not_outlast_a_call(tf, task):
  for _ in range(2):
    before, _ = _called(tf, task, lambda t: t.vars.count.assign_add(1))
    assert before == 8
  assert task.vars.count.assigned is None
  assert isinstance(task._private_theta['w'], variables.Variable)
  # Outside of a call the value is NaN.
  assert np.isnan((task.vars.w + 1.0).numpy()).all()


def test_an_assignment_within_a_loop_is_refused(tf, task):
  def compute(task):
    def body(i):
      tf.assign_add(task.vars.count, 1.0)
      return i + 1

    return tf.while_loop(lambda i: i < 3, body, [0])

  with pytest.raises(errors.UserError, match='count/var:0 is assigned within'):
    _called(tf, task, compute)


def test_an_assignment_of_another_shape_is_refused(tf, task):
  with pytest.raises(ValueError, match='must be equal'):
    _called(tf, task, lambda t: t.vars.w.assign([1.0, 2.0]))


def test_a_variable_that_is_not_a_stand_in_is_refused(tf):
  def build(layer):
    layer._private_vars['own'] = layer._private_theta['own'] = tf.Variable(1.0)

  with pytest.raises(errors.UserError, match='own is a .*Variable that was no'):
    variables.of(_built(small_task.params(build=build)))
