"""Tests of ops.xla_ops: the same results in JAX as in TensorFlow."""

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from adaptors import lingvo_runtime
from adaptors.bridge.ops import xla_ops

_X = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('lingvo.compat')


def _bridged(function, calls=None):
  """Returns a function of tensors, compiled inside JAX."""

  def traced(*args):
    with xla_ops.replaced(None) as replaced:
      outputs = function(*args)
    if calls is not None:
      calls[:] = replaced
    return outputs

  return jax.jit(jax2tf.call_tf(traced, has_side_effects=False))


@pytest.mark.parametrize('change', ['update', 'add', 'sub'])
@pytest.mark.parametrize('index', [None, 2, [3, 1]])
def test_updates_in_place(tf, change, index):
  inplace_ops = lingvo_runtime.module('tensorflow.python.ops.inplace_ops')
  function = getattr(inplace_ops, f'inplace_{change}')
  value = {None: _X + 1, 2: _X[0]}.get(index if index is None else 2, _X[0])
  value = _X[:2] if isinstance(index, list) else value
  expected = function(tf.constant(_X), index, value)
  actual = _bridged(lambda x: function(x, index, value))(_X)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_recurrent_layers_and_their_gradients(tf):
  recurrent = lingvo_runtime.module('lingvo.core.recurrent')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def layer(w, x):
    def cell(theta, state, inputs):
      h = tf.tanh(tf.einsum('d,de->e', state.h, theta.w) + inputs.x)
      return py_utils.NestedMap(h=h), py_utils.NestedMap()

    with lingvo_runtime.cluster(), tf.GradientTape() as tape:
      tape.watch([w, x])
      states, _ = recurrent.Recurrent(
        py_utils.NestedMap(w=w),
        py_utils.NestedMap(h=tf.zeros([3])),
        py_utils.NestedMap(x=x),
        cell,
      )
      total = tf.reduce_sum(states.h**2)
    return states.h, tape.gradient(total, [w, x])

  w = np.random.default_rng(1).normal(size=[3, 3]).astype(np.float32)
  calls = []
  actual = _bridged(layer, calls)(w, _X)
  expected = layer(tf.constant(w), tf.constant(_X))
  assert 'inplace_update' in {r.function for r in calls}
  for a, e in zip(
    jax.tree.leaves(actual), tf.nest.flatten(expected), strict=True
  ):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


def test_checks_messages_and_sums_over_replicas(tf):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  ops = lingvo_runtime.module('lingvo.core.ops')

  def layer(x):
    with tf.GradientTape() as tape, tf.name_scope('layer'):
      tape.watch(x)
      checks = [
        tf.Assert(tf.reduce_sum(x) > 1e9, ['too small', x]),
        tf.debugging.assert_less(x, -1e9),
        ops.assert_shape_match(tf.shape(x), [5, -1]),
        ops.assert_same_dim0([x, x[1:]]),
        tf.print('x', x),
      ]
      y = py_utils.with_dependencies(checks, tf.Print(x * x, [x], 'x is'))
      y = tf.tpu.cross_replica_sum(tf.debugging.check_numerics(y, 'nan'))
    return y, tape.gradient(y, x)

  calls = []
  y, gradient = _bridged(layer, calls)(_X)
  np.testing.assert_allclose(y, _X * _X, rtol=1e-6)
  np.testing.assert_allclose(gradient, 2 * _X, rtol=1e-6)
  assert {r.function for r in calls} == {
    'Assert',
    'assert_same_dim0',
    'assert_shape_match',
    'check_numerics',
    'cross_replica_sum',
    'print',
    'print_v2',
  }
  assert {r.scope.split('/')[0] for r in calls} == {'layer'}


def test_everything_is_restored_after_an_exception(tf):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  gpipe = lingvo_runtime.module('lingvo.core.gpipe')
  before = tf.tpu.cross_replica_sum, py_utils.GenerateStepSeedPair

  def failing():
    with gpipe.CellFnFPropOpReplacementWrapper():
      raise ValueError('within')

  with pytest.raises(ValueError, match='within'):
    _bridged(failing)()
  assert before == (tf.tpu.cross_replica_sum, py_utils.GenerateStepSeedPair)
  with pytest.raises(tf.errors.InvalidArgumentError):
    tf.debugging.check_numerics(np.float32('nan'), 'not replaced any more')
