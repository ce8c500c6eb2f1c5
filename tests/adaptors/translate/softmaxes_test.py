"""Translated softmaxes against Lingvo's, and samples against TensorFlow's.

Legend: B batch, T time, D input dims, V classes, S sampled classes.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import base_layer
from pax_compat.base_layer import PARAMS
from pax_compat.layers import candidate_sampling
from pax_compat.layers.embedding_softmax import (
  NClassMajorSharedEmbeddingSoftmax,
)
from pax_compat.layers.sampled_softmax import SampledSoftmax
from pax_compat.layers.softmaxes import FullSoftmax
from tests.adaptors.translate import parity, tensorflow_samples

B, T, D, V, S = 3, 5, 4, 24, 6
OUTPUTS = ('avg_xent', 'total_xent', 'total_weight', 'per_example_xent')


_counter = itertools.count()


def _params(cls='SimpleFullSoftmax', **fields):
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = getattr(layers, cls).Params()
  # Lingvo takes layers of one name for the same.
  params.Set(name=f'softmax_{next(_counter)}', input_dim=D, num_classes=V)
  return params.Set(**fields)


def _inputs():
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=[B, T, D]).astype(np.float32),
    rng.integers(0, V, [B, T]).astype(np.int32),
    rng.uniform(0, 2, [B, T]).astype(np.float32),
  )


def _fprop(seed=None):
  """Returns Lingvo's computation, whose random numbers start with a seed."""
  tf = lingvo_runtime.module('tensorflow')

  def wrapped(layer, theta, x, ids, weights):
    if seed is not None:
      tf.random.set_seed(seed)
    output = layer.FProp(theta, x, class_weights=weights, class_ids=ids)
    result = {name: output[name] for name in OUTPUTS}
    for name in ('per_example_xent', 'per_example_argmax'):
      result[name] = tf.reshape(output[name], [B, T])
    return result

  return wrapped


def _call(layer, x, ids, weights):
  output = layer(x, class_weights=weights, class_ids=ids)
  return {name: output[name] for name in (*OUTPUTS, 'per_example_argmax')}


@pytest.mark.parametrize('shards', [1, 3])
def test_training_with_the_same_sample(shards):
  tf = lingvo_runtime.module('tensorflow')
  params = _params(num_sampled=S, num_shards=shards, random_seed=42)
  translated = parity.translate(params)
  assert translated.config.sparse_gradients
  tf.random.set_seed(7)
  classes, counts = tensorflow_samples.sampler(S, V, seed=42)
  config = tensorflow_samples.given(
    translated.config, [(classes.numpy(), counts.numpy())]
  )
  x, ids, weights = _inputs()
  ids[0, :2] = classes[:2]  # Right classes that are in the sample.
  parity.check_pair(
    params,
    config,
    translated.variables,
    [x, ids, weights],
    fprop=_fprop(seed=7),
    call=_call,
    do_eval=False,
  )


@pytest.mark.parametrize('name', ['SimpleFullSoftmax', 'FocalFullSoftmax'])
@pytest.mark.parametrize(
  ('fields', 'cls'),
  [
    ({}, FullSoftmax),
    ({'num_sampled': S, 'num_shards': 2}, SampledSoftmax),
    (
      {'use_num_classes_major_weight': True, 'use_bias': False},
      NClassMajorSharedEmbeddingSoftmax,
    ),
    ({'num_sampled': S, 'chunk_size': 4}, NClassMajorSharedEmbeddingSoftmax),
  ],
)
def test_evaluation(name, fields, cls):
  params = _params(name, **fields)
  assert parity.translate(params).config.cls is cls
  parity.check_layer(params, _inputs(), fprop=_fprop(), call=_call)


@pytest.mark.parametrize('num_tries', [S, 9, 40])
def test_the_formula_of_tensorflow(num_tries):
  """With given samples, expected counts and all."""
  tf = lingvo_runtime.module('tensorflow')
  x, ids, _ = _inputs()
  x, ids = x.reshape(-1, D), ids.reshape(-1)
  rng = np.random.default_rng(1)
  weights = {
    'w': rng.normal(size=[V, D]).astype(np.float32),
    'b': rng.normal(size=[V]).astype(np.float32),
  }
  classes = np.array([0, 3, ids[0], 20, 23, 7])
  sample = candidate_sampling.Sample(jnp.array(classes), jnp.int32(num_tries))
  expected = tf.nn.sampled_softmax_loss(
    weights=tf.constant(weights['w']),
    biases=tf.constant(weights['b']),
    labels=tf.constant(ids[:, None], tf.int64),
    inputs=tf.constant(x),
    num_sampled=S,
    num_classes=V,
    sampled_values=(
      tf.constant(classes, tf.int64),
      *(
        tf.constant(candidate_sampling.expected_count(k, sample, V))
        for k in (ids[:, None], classes)
      ),
    ),
  )
  layer = SampledSoftmax.config(
    input_dims=D, num_classes=V, num_sampled=S
  ).Instantiate()
  logits = layer.apply(
    {PARAMS: weights}, x, ids, sample, method='sampled_logits'
  )
  xent = jax.nn.logsumexp(logits, -1) - logits[:, 0]
  parity.assert_close(xent, expected.numpy(), 1e-5, 'loss')


def test_samples_are_distributed_like_tensorflows():
  """How often each class is in a sample, and how many were drawn."""
  tf = lingvo_runtime.module('tensorflow')
  total, classes, sampled = 4000, 9, 3

  @tf.function
  def draw(index):
    del index
    return tensorflow_samples.sampler(sampled, classes, seed=None)[0]

  theirs = tf.map_fn(draw, tf.range(total), fn_output_signature=tf.int64)
  keys = jax.random.split(jax.random.key(0), total)
  ours = jax.lax.map(
    lambda key: candidate_sampling.log_uniform_sample(key, sampled, classes),
    keys,
  ).classes
  for place in range(sampled):
    shares = [
      np.bincount(np.array(x)[:, place], minlength=classes) / total
      for x in (theirs, ours)
    ]
    deviation = np.sqrt(2 * shares[0] * (1 - shares[0]) / total)
    assert np.all(np.abs(shares[0] - shares[1]) <= 4.5 * deviation + 1e-3)


@pytest.mark.parametrize(
  ('name', 'fields', 'issue'),
  [
    ('SimpleFullSoftmax', {'apply_pruning': True}, 'apply_pruning'),
    ('SimpleFullSoftmax', {'num_shards': 5}, 'num_shards'),
    (
      'SimpleFullSoftmax',
      {'num_sampled': 4, 'use_bias': False},
      'use_bias',
    ),
    ('FocalFullSoftmax', {'focal_loss_gamma': 2.0}, 'focal_loss_gamma'),
    ('FocalFullSoftmax', {'focal_loss_alpha': [1.0]}, 'focal_loss_alpha'),
  ],
)
def test_what_is_not_translated_is_refused(name, fields, issue):
  (found,) = parity.issues_of(_params(name, **fields))
  assert f'layer.{issue}' in found


def test_first_values_are_those_of_lingvos_shards():
  """Their scale depends on the shape of a shard."""
  init = lingvo_runtime.module('lingvo.core.py_utils').WeightInit
  params = _params(
    num_sampled=S,
    num_shards=8,
    num_classes=8000,
    params_init=init.UniformUnitScaling(8.0),
  )
  layer = parity.translate(params).config.Instantiate()
  x, ids, weights = _inputs()
  ours = layer.init(jax.random.key(0), x, weights, class_ids=ids)
  ours = base_layer.unbox(ours)[PARAMS]['w']
  with lingvo_runtime.cluster():
    theirs = params.Instantiate().vars.weight_3.numpy()
  np.testing.assert_allclose(np.std(ours), np.std(theirs), rtol=0.03)
  np.testing.assert_allclose(np.max(ours), np.max(theirs), rtol=0.01)
