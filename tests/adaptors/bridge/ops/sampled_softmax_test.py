"""Tests of ops.sampled_softmax against TensorFlow's samplers."""

import contextlib

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from adaptors import lingvo_runtime
from adaptors.bridge.ops import function_replacing, xla_ops
from pax_compat import errors

_SEED = np.array([3, 4], np.int32)
_TRUE = np.array([[0, 7], [3, 5]])
_LOG_UNIFORM = (
  'tensorflow.python.ops.gen_candidate_sampling_ops'
  '.log_uniform_candidate_sampler'
)
_NUM_SAMPLES = 2000


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('tensorflow')


def _samplers(tf):
  """Returns samplers by name: () -> candidates, TensorFlow's or replaced."""
  weights = [1.0, 5.0, 2.0, 1.0, 8.0, 3.0]
  random = tf.random
  return {
    'log uniform': lambda: random.log_uniform_candidate_sampler(
      _TRUE, 2, 5, True, 12
    ),
    'log uniform, repeated': lambda: random.log_uniform_candidate_sampler(
      _TRUE, 2, 5, False, 12
    ),
    'uniform': lambda: random.uniform_candidate_sampler(_TRUE, 2, 5, True, 12),
    'fixed': lambda: random.fixed_unigram_candidate_sampler(
      _TRUE, 2, 4, True, 8, num_reserved_ids=2, distortion=0.7, unigrams=weights
    ),
    'all': lambda: random.all_candidate_sampler(_TRUE, 2, 12, True),
  }


@pytest.fixture(scope='module')
def many_samples(tf):
  """Returns many samples, ours and TensorFlow's, by name of the sampler."""
  samplers = _samplers(tf)
  kinds = (tf.int64, tf.float32, tf.float32)

  def drawn(_):
    return {name: tuple(draw()) for name, draw in samplers.items()}

  def all_drawn():
    return tf.map_fn(
      drawn, tf.range(_NUM_SAMPLES), dict.fromkeys(samplers, kinds)
    )

  def replaced(seed):
    with xla_ops.replaced(seed):
      return all_drawn()

  ours = jax.jit(jax2tf.call_tf(replaced, has_side_effects=False))(_SEED)
  return ours, tf.function(all_drawn)()


@pytest.mark.parametrize(
  'name', ['log uniform', 'log uniform, repeated', 'uniform', 'fixed', 'all']
)
def test_frequencies_and_expected_counts_are_tensorflows(many_samples, name):
  ours, theirs = (
    [np.asarray(x) for x in samples[name]] for samples in many_samples
  )
  frequencies = [
    np.bincount(classes.ravel(), minlength=12) / _NUM_SAMPLES
    for classes in (ours[0], theirs[0])
  ]
  # Of 2000 samples: three and a half standard deviations of a difference.
  np.testing.assert_allclose(*frequencies, atol=0.06)
  np.testing.assert_allclose(ours[1].mean(0), theirs[1].mean(0), rtol=0.03)
  np.testing.assert_allclose(
    ours[2].mean(0), theirs[2].mean(0), rtol=0.05, atol=0.01
  )
  if 'repeated' not in name:
    assert all(np.unique(row).size == row.size for row in ours[0])


def test_expected_counts_are_tensorflows_for_the_same_number_of_tries(
  many_samples,
):
  """One sample of `log uniform` took as many tries as TensorFlow's did."""
  ours, theirs = (np.asarray(s['log uniform'][1]) for s in many_samples)
  counts = np.unique(ours[:, 0, 0]), np.unique(theirs[:, 0, 0])
  common = np.isclose(counts[0][:, None], counts[1], rtol=1e-5).sum()
  assert common > 0.7 * min(counts[0].size, counts[1].size)


def _sampled_losses(tf, weights, biases, labels, inputs):
  """Returns losses, and gradients of their sum."""
  with tf.GradientTape() as tape:
    tape.watch([weights, biases, inputs])
    losses = tf.nn.sampled_softmax_loss(
      weights, biases, labels, inputs, 5, 12, num_true=2
    )
    total = tf.reduce_sum(losses)
  gradients = tape.gradient(total, [weights, biases, inputs])
  return losses, [tf.convert_to_tensor(g) for g in gradients]


def _given(tf):
  """Gives every sampled softmax the same candidates, some of them hits."""

  def candidates(_, true_classes, *args, **kwargs):
    classes = tf.constant([5, 1, 0, 9, 2], tf.int64)
    return tuple(
      [
        classes,
        *(1 / (2 + tf.cast(c, tf.float32)) for c in (true_classes, classes)),
      ]
    )

  return function_replacing.replaced({_LOG_UNIFORM: candidates})


def test_sampled_softmax_is_tensorflows_for_the_same_candidates(tf):
  rng = np.random.default_rng(0)
  arrays = [
    rng.normal(size=[12, 4]).astype(np.float32),
    rng.normal(size=[12]).astype(np.float32),
    _TRUE,
    rng.normal(size=[2, 4]).astype(np.float32),
  ]

  def bridged(*args):
    with xla_ops.replaced(_SEED) as calls, _given(tf):
      losses = _sampled_losses(tf, *args)
    functions = {r.function for r in calls}
    assert functions == {'compute_accidental_hits', 'sparse_to_dense'}
    return losses

  actual = jax.jit(jax2tf.call_tf(bridged, has_side_effects=False))(*arrays)
  with _given(tf):
    expected = _sampled_losses(tf, *map(tf.constant, arrays))
  for a, e in zip(
    jax.tree.leaves(actual), tf.nest.flatten(expected), strict=True
  ):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('fields', [{'num_sampled': 5}, {'chunk_size': 3}])
def test_lingvos_softmax_and_its_gradients(tf, fields):
  layers = lingvo_runtime.module('lingvo.core.layers')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=[6, 4]).astype(np.float32)
  classes = rng.integers(0, 12, [6, 1]).astype(np.int32)
  params = layers.SimpleFullSoftmax.Params().Set(
    name='softmax', input_dim=4, num_classes=12, num_shards=2, **fields
  )
  if 'chunk_size' in fields:
    params.num_shards = 1

  def losses(layer, theta, inputs, classes):
    theta = py_utils.NestedMap(theta)
    given = contextlib.nullcontext() if 'chunk_size' in fields else _given(tf)
    with lingvo_runtime.cluster(), given, tf.GradientTape() as tape:
      tape.watch([theta.Flatten(), inputs])
      out = layer.FProp(
        theta, inputs, class_weights=tf.ones([6, 1]), class_ids=classes
      )
    gradients = tape.gradient(out.total_xent, [*theta.Flatten(), inputs])
    return out.per_example_xent, [tf.convert_to_tensor(g) for g in gradients]

  with lingvo_runtime.cluster():
    layer = params.Instantiate()
  theta = {name: x.numpy() for name, x in layer.theta.FlattenItems()}

  def bridged(theta, inputs, classes):
    with xla_ops.replaced(_SEED):
      return losses(layer, theta, inputs, classes)

  actual = jax.jit(jax2tf.call_tf(bridged, has_side_effects=False))(
    theta, inputs, classes
  )
  expected = losses(
    layer,
    {name: tf.constant(x) for name, x in theta.items()},
    tf.constant(inputs),
    tf.constant(classes),
  )
  for a, e in zip(
    jax.tree.leaves(actual), tf.nest.flatten(expected), strict=True
  ):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ('sampler', 'words'),
  [
    ('learned_unigram_candidate_sampler', 'learns its distribution'),
    ('log_uniform_candidate_sampler', '5 different classes of 4'),
  ],
)
def test_what_cannot_be_sampled_is_refused(tf, sampler, words):
  with (
    xla_ops.replaced(None),
    pytest.raises(errors.UserError, match=words),
  ):
    getattr(tf.random, sampler)(_TRUE, 2, 5, True, 4)
