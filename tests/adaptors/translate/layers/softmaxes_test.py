"""Translated softmaxes against Lingvo's, and samples against TensorFlow's.

Legend: B batch, T time, D input dims, V classes, S sampled classes.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_parity import given_samples
from pax_compat import base_layer
from pax_compat.base_layer import PARAMS
from pax_compat.layers.embedding_softmax import (
  NClassMajorSharedEmbeddingSoftmax,
)
from pax_compat.layers.softmaxes import candidate_sampling
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.softmaxes.sampled_softmax import SampledSoftmax
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
  config = given_samples.given(
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


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('EinsumSoftmax', {'logits_abs_max': 1.0}),
    ('EinsumSoftmax', {'use_bias': False, 'logits_soft_max': 2.0}),
    ('SingleShardFullSoftmax', {'logits_abs_max': 1.0}),
    ('SingleShardFullSoftmax', {'chunk_size': B, 'logits_soft_max': 2.0}),
  ],
)
def test_softmaxes_of_one_variable(name, fields):
  """Weights and classes have a dimension more in Lingvo."""

  def fprop(layer, theta, x, ids, weights):
    output = layer.FProp(
      theta, x, class_weights=weights[..., None], class_ids=ids[..., None]
    )
    return {name: output[name] for name in (*OUTPUTS, 'per_example_argmax')}

  parity.check_layer(
    _params(name, **fields),
    _inputs(),
    fprop=fprop,
    call=_call,
    do_eval='chunk_size' not in fields,
  )


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('FocalFullSoftmax', {'focal_loss_gamma': 2.0, 'num_shards': 3}),
    (
      'FocalFullSoftmax',
      {
        'focal_loss_gamma': 0.5,
        'focal_loss_alpha': np.linspace(0, 3, V, dtype=np.float32).tolist(),
      },
    ),
    ('EinsumSoftmax', {'focal_loss_gamma': 1.0}),
  ],
)
@pytest.mark.parametrize('by_id', [True, False])
def test_focal_losses(name, fields, by_id):
  rng = np.random.default_rng(5)
  probabilities = rng.dirichlet(np.ones(V), [B, T]).astype(np.float32)

  def target(ids):
    if by_id:
      return {'class_ids': ids}
    return {'class_probabilities': probabilities}

  def fprop(layer, theta, x, ids, weights):
    output = layer.FProp(theta, x, class_weights=weights, **target(ids))
    return {name: output[name] for name in OUTPUTS}

  def call(layer, x, ids, weights):
    output = layer(x, class_weights=weights, **target(ids))
    return {name: output[name] for name in OUTPUTS}

  parity.check_layer(_params(name, **fields), _inputs(), fprop=fprop, call=call)


def _with_lookup(fprop):
  """Returns a computation of losses and of what is looked up."""

  def wrapped(layer, *given):
    ids = given[-2]
    looked_up = (
      layer.EmbLookup(given[0], ids)
      if hasattr(layer, 'EmbLookup')
      else layer.emb_lookup(ids)
    )
    return {**fprop(layer, *given), 'vectors': looked_up}

  return wrapped


@pytest.mark.parametrize(
  ('fields', 'of_softmax'),
  [
    ({'scale_sqrt_depth': True}, {'num_shards': 3}),
    (
      {'input_dim': D, 'num_classes': V, 'vocab_size': V, 'embedding_dim': D},
      {'use_num_classes_major_weight': True, 'num_shards': 2},
    ),
    (
      {'chunk_size': 4, 'scale_sqrt_depth': True},
      {'use_num_classes_major_weight': True, 'use_bias': False},
    ),
  ],
)
def test_a_softmax_that_is_an_embedding(fields, of_softmax):
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = layers.SharedSoftmaxLayer.Params().Set(
    name=f'shared_{next(_counter)}', **fields
  )
  params.softmax.Set(input_dim=D, num_classes=V, **of_softmax)
  parity.check_layer(
    params,
    _inputs(),
    fprop=_with_lookup(_fprop()),
    call=_with_lookup(_call),
    do_eval='chunk_size' not in fields,
  )


def test_a_softmax_of_one_variable_that_is_an_embedding():
  params = _params(
    'SingleShardSharedEmbeddingSoftmax',
    vocab_size=V,
    embedding_dim=D,
    scale_sqrt_depth=True,
  )
  _, ids, _ = _inputs()
  parity.check_layer(
    params,
    [ids],
    fprop=lambda layer, theta, ids: {
      'vectors': layer.EmbLookup(theta, ids),
      'logits': layer.Logits(theta, layer.EmbLookup(theta, ids)),
    },
    call=lambda layer, ids: {
      'vectors': layer.emb_lookup(ids),
      'logits': layer.get_logits(layer.emb_lookup(ids)),
    },
  )


@pytest.mark.parametrize(
  ('path', 'value', 'issue'),
  [
    ('softmax.num_sampled', S, 'softmax'),
    ('vocab_size', V + 1, 'vocab_size'),
    ('embedding_dim', D + 1, 'embedding_dim'),
  ],
)
def test_shared_softmaxes_that_are_refused(path, value, issue):
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = layers.SharedSoftmaxLayer.Params().Set(name='shared')
  params.softmax.Set(input_dim=D, num_classes=V)
  params.Set(**{path: value})
  (found,) = parity.issues_of(params)
  assert found.startswith(f'layer.{issue} ')


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
    (
      'FocalFullSoftmax',
      {'focal_loss_gamma': 2.0, 'num_sampled': 4},
      'focal_loss_gamma',
    ),
    (
      'FocalFullSoftmax',
      {'focal_loss_alpha': [1.0] * V, 'chunk_size': 3},
      'focal_loss_gamma',
    ),
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
