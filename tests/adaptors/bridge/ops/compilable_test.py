"""Tests of adaptors.bridge.ops.compilable."""

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from adaptors import lingvo_runtime
from adaptors.bridge.ops import compilable
from pax_compat import errors


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('lingvo.compat')


def _compiled(function):
  return jax.jit(
    jax2tf.call_tf(compilable.compilable(function), has_side_effects=False)
  )


def _user_layer(tf):
  """Returns a user's layer with many unsupported ops."""
  base_layer = lingvo_runtime.module('lingvo.core.base_layer')
  ops = lingvo_runtime.module('lingvo.core.ops')

  class Looker(base_layer.BaseLayer):
    """Looks values up as words."""

    def FProp(self, theta, x):
      with tf.name_scope(self.params.name):
        ids = tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 10)
        total = tf.reduce_sum(tf.cast(ids, tf.float32))
        total += tf.py_function(np.sum, [x], tf.float32)
        words = ops.id_to_ascii(tf.cast(ids[None], tf.int32), [3])
        total += tf.cast(tf.strings.length(words)[0], tf.float32)
        return total + tf.reduce_sum(tf.random.gamma([2], 1.0)), tf.unique(x).y

  with lingvo_runtime.cluster():
    return Looker.Params().Set(name='looker').Instantiate()


def test_refused_ops_are_listed_with_their_layer(tf):
  layer = _user_layer(tf)
  function = tf.function(lambda x: layer.FProp(layer.theta, x))
  refused = compilable.uncompilable_ops(
    function.get_concrete_function(tf.TensorSpec([3]))
  )
  words = {op: (scope, advice) for op, scope, advice in refused}
  assert sorted(words) == [
    'AsString',
    'EagerPyFunc',
    'IdToAscii',
    'RandomGamma',
    'StringLength',
    'StringToHashBucketFast',
    'Unique',
  ]
  assert all(scope.startswith('looker') for scope, _ in words.values())
  assert 'accelerators do not support strings' in words['AsString'][1]
  assert 'Python code' in words['EagerPyFunc'][1]
  assert 'native op of Lingvo' in words['IdToAscii'][1]
  assert 'random numbers' in words['RandomGamma'][1]
  assert 'pad it' in words['Unique'][1]


def test_the_error_is_raised_before_anything_is_compiled(tf):
  layer = _user_layer(tf)
  run = _compiled(lambda x: layer.FProp(layer.theta, x)[0])
  with pytest.raises(errors.UserError, match='AsString in looker: .*generator'):
    run(np.ones([3], np.float32))


def test_ops_in_branches_loops_and_functions_are_found(tf):
  @tf.function
  def written(x):
    return tf.strings.length(tf.strings.as_string(x))

  def looped(x):
    with tf.name_scope('encoder'):
      return tf.while_loop(
        lambda i, _: i < 3, lambda i, n: (i + 1, n + written(x)), [0, 0]
      )

  function = tf.function(looped).get_concrete_function(tf.TensorSpec([]))
  refused = compilable.uncompilable_ops(function)
  assert [r.op for r in refused] == ['AsString', 'StringLength']
  assert all(r.scope.startswith('encoder/while') for r in refused)


def test_supported_ops_are_not_listed(tf):
  def plain(x):
    tf.debugging.assert_greater(x[0], 0.0, 'a message')
    large = tf.boolean_mask(x, x > 1.5)
    total = tf.reduce_sum(large) + tf.reduce_sum(tf.unique(x).y)
    return tf.cond(total > 0, lambda: total, lambda: -total)

  function = tf.function(plain).get_concrete_function(tf.TensorSpec([3]))
  assert not compilable.uncompilable_ops(function)
  run = _compiled(plain)
  np.testing.assert_allclose(run(np.array([1.0, 2.0, 2.0], np.float32)), 7.0)


@pytest.mark.parametrize(
  ('op', 'function'),
  [
    ('Unique', lambda tf, x: tf.unique(x).y),
    ('Cumsum', lambda tf, x: tf.cumsum(x)),
    ('StridedSlice', lambda tf, x: x[-2:]),
  ],
)
def test_ops_that_xla_computes_wrongly_are_listed(tf, op, function):
  def wrong(x):
    with tf.name_scope('encoder'):
      large = tf.boolean_mask(x, x > 1.5)
      return tf.reduce_sum(function(tf, large)), x[-1], tf.cumsum(x)

  traced = tf.function(wrong).get_concrete_function(tf.TensorSpec([5]))
  (refused,) = compilable.uncompilable_ops(traced)
  assert (refused.op, refused.scope.split('/')[0]) == (op, 'encoder')
  assert 'wrongly' in refused.advice


def test_unused_ops_are_pruned(tf):
  def with_unused(tree):
    with tf.name_scope('unused'):
      tf.strings.length(tf.strings.as_string(tree['x.y']))
    doubled = tf.while_loop(
      lambda i, _: i < 3, lambda i, y: (i + 1, 2 * y), [0, tree['x.y']]
    )[1]
    return {'doubled': doubled, 'both': (tree['x.y'], tree['z'][0])}

  x, z = np.float32(3), np.int32(5)
  out = _compiled(with_unused)({'x.y': x, 'z': [z]})
  assert out == {'doubled': 24, 'both': (3, 5)}
