"""Tests of loops without `maximum_iterations`, and of their gradients."""

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from adaptors import lingvo_runtime
from adaptors.bridge.ops import compilable, xla_ops
from pax_compat import errors

_X = np.array([0.5, -1.0, 2.0], np.float32)


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('lingvo.compat')


def _gradient(tf, loop):
  """Returns a function of x with the gradient of a loop's sum."""

  def gradient(x):
    with xla_ops.replaced(None), tf.GradientTape() as tape:
      tape.watch(x)
      total = tf.reduce_sum(loop(x))
    return total, tape.gradient(total, x)

  return gradient


def _check(tf, loop):
  """Holds it, compiled in JAX, against TensorFlow's."""
  with tf.GradientTape() as tape:
    x = tf.constant(_X)
    tape.watch(x)
    total = tf.reduce_sum(loop(x))
  wanted = total.numpy(), tape.gradient(total, x).numpy()
  traced = compilable.compilable(_gradient(tf, loop))
  compiled = jax.jit(jax2tf.call_tf(traced, has_side_effects=False))
  for found, want in zip(compiled(_X), wanted, strict=True):
    np.testing.assert_allclose(found, want, rtol=1e-6)


def _upwards(tf, x):
  return tf.while_loop(
    lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, x)
  )[1]


def _over_a_shape(tf, x):
  """Stops early, too."""
  size = tf.shape(x)[0]
  return tf.while_loop(
    lambda i, n, y: tf.logical_and(i <= n - 1, tf.reduce_sum(y) < 99.0),
    lambda i, n, y: (i + 2, n, y * tf.exp(y)),
    (tf.constant(0), size, x),
  )[2]


def _downwards_with_an_inner_one(tf, x):
  def body(i, y):
    return i - 1, _upwards(tf, y) * 2.0

  return tf.while_loop(
    lambda i, _: tf.logical_not(i <= tf.constant(0)), body, (2, x)
  )[1]


def _with_an_array(tf, x):
  steps = tf.TensorArray(tf.float32, 4, element_shape=[3])

  def body(i, y, steps):
    y = tf.sin(y)
    return i + 1, y, steps.write(i, y)

  *_, steps = tf.while_loop(lambda i, *_: 4 > i, body, (0, x, steps))
  return steps.stack()


def test_the_condition_is_a_counter(tf):
  _check(tf, lambda x: _over_a_shape(tf, x))


@pytest.mark.slow
@pytest.mark.parametrize(
  'loop', [_upwards, _downwards_with_an_inner_one, _with_an_array]
)
def test_other_counters(tf, loop):
  _check(tf, lambda x: loop(tf, x))


def _without_a_counter(tf, x):
  return tf.while_loop(
    lambda y, _: tf.reduce_sum(y) > 0.1,
    lambda y, n: (tf.sin(y) * 0.5, n + 1),
    (x, 0),
  )[0]


def _with_uneven_steps(tf, x):
  return tf.while_loop(
    lambda i, _: i < 3,
    lambda i, y: (i + tf.cast(y[0] > 0, tf.int32), tf.sin(y)),
    (0, x),
  )[1]


@pytest.mark.parametrize('loop', [_without_a_counter, _with_uneven_steps])
def test_other_loops_are_one_error(tf, loop):
  """With the place in the user's code, before anything is compiled."""
  traced = tf.function(
    compilable.compilable(_gradient(tf, lambda x: loop(tf, x)))
  )
  with pytest.raises(errors.UserError, match='maximum_iterations=') as error:
    traced.get_concrete_function(tf.TensorSpec([3]))
  file, line = str(error.value).splitlines()[-1].split(': ')[0].split(':')
  assert file.strip() == __file__
  first = loop.__code__.co_firstlineno
  assert first < int(line) < first + 5
  assert 'while' in str(error.value).splitlines()[-1].split(': ')[1]


def test_a_loop_that_is_not_differentiated_needs_no_bound(tf):
  def run(x):
    with xla_ops.replaced(None):
      return _without_a_counter(tf, x)

  compiled = jax2tf.call_tf(compilable.compilable(run), has_side_effects=False)
  wanted = _without_a_counter(tf, tf.constant(_X))
  np.testing.assert_allclose(jax.jit(compiled)(_X), wanted, rtol=1e-6)
