"""Tests of adaptors.bridge.ops.random_ops, compiled inside JAX."""

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from adaptors import lingvo_runtime
from adaptors.bridge.ops import xla_ops
from pax_compat import errors

_SEED = np.array([1, 2], np.int32)
_OTHER_SEED = np.array([1, 3], np.int32)


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('tensorflow')


@pytest.fixture(scope='module')
def py_utils():
  return lingvo_runtime.module('lingvo.core.py_utils')


def _compiled(function, *, step=0):
  """Returns a function (seed, *arrays) that runs in JAX with given numbers."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def traced(seed, *args):
    with (
      lingvo_runtime.cluster(xla_device='tpu'),
      xla_ops.replaced(seed),
      py_utils.GlobalStepContext(
        lingvo_runtime.module('tensorflow').constant(step, 'int64')
      ),
    ):
      py_utils.ResetStepSeed()
      return function(*args)

  return jax.jit(jax2tf.call_tf(traced, has_side_effects=False))


def _all_kinds(tf):
  """Calls each source of random numbers, some of them twice."""
  ones = tf.ones([8])
  branch = tf.cond(
    tf.reduce_sum(ones) > 0,
    lambda: tf.random.normal([8]),
    lambda: tf.random.normal([8]) + 100,
  )
  return {
    'dropout': tf.nn.dropout(ones, 0.5),
    'dropout again': tf.nn.dropout(ones, 0.5),
    'v1 dropout': tf.compat.v1.nn.dropout(ones, rate=0.5),
    'uniform': tf.random.uniform([8], seed=5),
    'uniform again': tf.random.uniform([8], seed=5),
    'integers': tf.random.uniform([64], 3, 7, tf.int32),
    'normal': tf.random.normal([8], 1.0, 2.0),
    'truncated normal': tf.random.truncated_normal([64]),
    'categorical': tf.random.categorical([[0.0, -1e9, 0.0]], 32),
    'shuffle': tf.random.shuffle(tf.range(16)),
    'generator': tf.random.get_global_generator().normal([8]),
    'raw': tf.raw_ops.RandomUniform(shape=[8], dtype=tf.float32),
    'branch': branch,
  }


@pytest.fixture(scope='module')
def run_all_kinds(tf):
  """Returns a compiled function that draws numbers of all kinds by a seed."""
  return _compiled(lambda: _all_kinds(tf))


def test_all_numbers_depend_on_the_seed(run_all_kinds):
  numbers, again, other = map(run_all_kinds, (_SEED, _SEED, _OTHER_SEED))
  for kind, x in numbers.items():
    np.testing.assert_array_equal(x, again[kind], kind)
    assert (x != other[kind]).any(), kind


def test_calls_differ(run_all_kinds):
  numbers = run_all_kinds(_SEED)
  assert (numbers['uniform'] != numbers['uniform again']).all()
  assert (numbers['dropout'] != numbers['dropout again']).any()
  assert (numbers['raw'] != numbers['uniform']).all()


def test_numbers_are_of_the_requested_distribution(run_all_kinds):
  numbers = run_all_kinds(_SEED)
  assert set(np.unique(numbers['dropout'])) == {0.0, 2.0}
  assert set(np.unique(numbers['integers'])) == {3, 4, 5, 6}
  assert set(np.unique(numbers['categorical'])) == {0, 2}
  assert sorted(numbers['shuffle'].tolist()) == list(range(16))
  assert abs(numbers['truncated normal']).max() < 2
  assert abs(numbers['branch']).max() < 50


def test_every_iteration_of_loops_draws_different_numbers(tf):
  def nested():
    def row(_):
      return tf.map_fn(
        lambda _: tf.random.uniform([]),
        tf.range(3),
        fn_output_signature='float',
      )

    return tf.map_fn(row, tf.range(4), fn_output_signature=tf.float32)

  run = _compiled(nested)
  numbers = run(_SEED)
  assert np.unique(numbers).size == 12
  assert not np.isin(run(_OTHER_SEED), numbers).any()


def test_lingvos_step_seeds_follow_from_the_seed_and_the_step(py_utils):
  fields = py_utils.NestedMap(is_inference=False, random_seed=None)

  def pairs():
    first = py_utils.GenerateStepSeedPair(fields)
    py_utils.MaybeResetStepSeedFromScope()
    return first, py_utils.GenerateStepSeedPair(fields)

  at_3, at_4 = _compiled(pairs, step=3), _compiled(pairs, step=4)
  seeds = [*at_3(_SEED), *at_3(_OTHER_SEED), *at_4(_SEED)]
  assert len({tuple(pair.tolist()) for pair in seeds}) == 6
  np.testing.assert_array_equal(at_3(_SEED)[1], seeds[1])


def test_evaluation_leaves_lingvos_step_seeds_alone(tf, py_utils):
  fields = py_utils.NestedMap(is_inference=False, random_seed=7)

  def evaluated():
    with xla_ops.replaced(None) as calls, py_utils.GlobalStepContext(3):
      py_utils.ResetStepSeed()
      pair = py_utils.GenerateStepSeedPair(fields)
      return pair, tf.random.uniform([4]), [r.function for r in calls]

  pair, numbers, functions = evaluated()
  np.testing.assert_array_equal(pair, [3 + 7, 0 + 7])
  np.testing.assert_array_equal(numbers, evaluated()[1])
  assert functions == ['random_uniform']


def _summed_by_recurrent(tf, py_utils, x):
  """Adds up rows with dropout, by Lingvo's recurrent layer."""
  recurrent = lingvo_runtime.module('lingvo.core.recurrent')

  def cell(theta, state, inputs):
    kept = tf.nn.dropout(theta.w * inputs.x, 0.5)
    return py_utils.NestedMap(sum=state.sum + kept), py_utils.NestedMap()

  sums, _ = recurrent.Recurrent(
    py_utils.NestedMap(w=tf.constant(1.0)),
    py_utils.NestedMap(sum=tf.zeros_like(x[0])),
    py_utils.NestedMap(x=x),
    cell,
  )
  return tf.concat([sums.sum[:1], sums.sum[1:] - sums.sum[:-1]], 0)


def _computed_again(tf, py_utils, x):
  return py_utils.RematerializeFn(lambda y: tf.nn.dropout(y, 0.5), x)


@pytest.mark.parametrize('layer', [_summed_by_recurrent, _computed_again])
def test_recomputation_uses_the_same_dropout_mask(tf, py_utils, layer):
  def dropped(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      kept = layer(tf, py_utils, x)
      total = tf.reduce_sum(kept)
    return kept, tape.gradient(total, x)

  kept, gradient = _compiled(dropped)(_SEED, np.ones([3, 16], np.float32))
  assert set(np.unique(kept)) == {0.0, 2.0}
  assert np.unique(kept, axis=0).shape[0] == 3
  np.testing.assert_array_equal(gradient, kept)


def test_gpipes_step_seeds_follow_from_the_seed(py_utils):
  gpipe = lingvo_runtime.module('lingvo.core.gpipe')
  fields = py_utils.NestedMap(is_inference=False, random_seed=None)

  def pair():
    with gpipe.CellFnFPropOpReplacementWrapper():
      return py_utils.GenerateStepSeedPair(fields)

  run = _compiled(pair)
  assert (run(_SEED) != run(_OTHER_SEED)).any()


def test_unseeded_ops_are_refused(tf):
  with (
    xla_ops.replaced(None),
    pytest.raises(errors.UserError, match='stateful_uniform would not follow'),
  ):
    tf.raw_ops.StatefulUniform(
      resource=tf.random.get_global_generator().state.handle,
      algorithm=tf.constant(1, tf.int64),
      shape=[2],
    )


def test_a_function_with_a_custom_gradient(tf, py_utils):
  """As in Lingvo's FetchLayer: it must not capture the seed."""

  def loss(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = py_utils.CallDefun(
        lambda x: 2 * x, x, bak=lambda xs, ys, dys: 3 * dys
      )
      loss = tf.reduce_sum(y)
    return loss, tape.gradient(loss, x)

  value, gradient = _compiled(loss)(_SEED, np.ones([4], np.float32))
  assert value == 8
  np.testing.assert_array_equal(gradient, [3, 3, 3, 3])
