"""Softmax layers and their losses against Lingvo's, run for real.

Shapes: B batch, T time, D input dims, V classes.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Variable, VariableMap
from pax_compat.layers import embedding_softmax
from pax_compat.layers.softmaxes import full_softmax, sigmoid_cross_entropy
from tests.adaptors.translate.parity import check_pair

B, T, D, V = 3, 6, 8, 10
RNG = np.random.default_rng(1)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
IDS = RNG.integers(0, V, (B, T)).astype(np.int32)
WEIGHTS = (np.arange(T) < np.array([[T], [3], [1]])).astype(np.float32)
PROBABILITIES = RNG.dirichlet(np.ones(V), (B, T)).astype(np.float32)
LINEAR = {
  'input_dim': D,
  'num_classes': V,
  'name': 'softmax',
}
FIELDS = {'input_dims': D, 'num_classes': V}

# What both sides return, with a gradient by way of each loss.
_RESULTS = ('per_example_xent', 'per_example_argmax', 'total_xent', 'avg_xent')


@pytest.fixture(scope='module')
def layers():
  return lingvo_runtime.module('lingvo.core.layers')


def _results(output, names=_RESULTS) -> dict:
  return {name: output[name] for name in names}


def _variables(**paths) -> VariableMap:
  return VariableMap(
    Variable((theirs.replace('__', '.'),), ours)
    for theirs, ours in paths.items()
  )


def _check(params, config, variables, *, targets, names=_RESULTS, do_eval=True):
  """Compares losses.

  Args:
    params: the Lingvo layer's Params.
    config: of our layer.
    variables: of both.
    targets: 'ids' or 'probabilities'.
    names: of the results to compare.
    do_eval: whether both behave as at evaluation.
  """
  if targets == 'ids':
    inputs, keyword = [X, WEIGHTS[..., None], IDS[..., None]], 'class_ids'
  else:
    inputs = [X, WEIGHTS[..., None], PROBABILITIES]
    keyword = 'class_probabilities'
  check_pair(
    params,
    config,
    variables,
    inputs,
    fprop=lambda layer, theta, x, weights, target: _results(
      layer.FProp(theta, x, weights, **{keyword: target}), names
    ),
    call=lambda layer, x, weights, target: _results(
      layer(x, weights, **{keyword: target}), names
    ),
    do_eval=do_eval,
  )


@pytest.mark.parametrize('targets', ['ids', 'probabilities'])
@pytest.mark.parametrize(
  ('limits', 'ours'),
  [
    ({}, {}),
    ({'logits_abs_max': 0.5}, {'logits_abs_max': 0.5}),
    ({'logits_soft_max': 1.5}, {'soft_cap_logits': 1.5}),
    (
      {'logits_abs_max': 2.0, 'logits_soft_max': 0.5},
      {'logits_abs_max': 2.0, 'soft_cap_logits': 0.5},
    ),
  ],
)
def test_full_softmax(layers, targets, limits, ours):
  _check(
    layers.EinsumSoftmax.Params().Set(**LINEAR, **limits),
    full_softmax.FullSoftmax.config(**FIELDS, **ours),
    _variables(w='logits_ffn/linear/w', b='logits_ffn/bias/b'),
    targets=targets,
    names=(*_RESULTS, 'logits', 'log_probs'),
  )


@pytest.mark.parametrize('chunk_size', [1, 2, 4])
def test_chunks(layers, chunk_size):
  """Lingvo's are of the batch, ours of the time axis."""
  _check(
    layers.SingleShardFullSoftmax.Params().Set(**LINEAR, chunk_size=1),
    full_softmax.FullSoftmax.config(**FIELDS, chunk_size=chunk_size),
    _variables(linear__w='logits_ffn/linear/w', bias__b='logits_ffn/bias/b'),
    targets='ids',
    do_eval=False,
  )


@pytest.mark.parametrize('uncertainty', [0.1, 0.5])
@pytest.mark.parametrize('chunk_size', [0, 2])
def test_label_smoothing(layers, uncertainty, chunk_size):
  smoother = layers.UniformLabelSmoother.Params().Set(
    name='smoother', num_classes=V, uncertainty=uncertainty
  )
  with lingvo_runtime.cluster():
    smoother = smoother.Instantiate()

  def fprop(layer, theta, x, weights, ids):
    target = smoother.FProp(smoother.theta, 1 - weights, ids, None)
    return _results(layer.FProp(theta, x, weights, class_probabilities=target))

  check_pair(
    layers.SimpleFullSoftmax.Params().Set(**LINEAR),
    full_softmax.FullSoftmax.config(
      **FIELDS, label_smoothing_prob=uncertainty, chunk_size=chunk_size
    ),
    _variables(weight_0='logits_ffn/linear/w', bias_0='logits_ffn/bias/b'),
    [X, WEIGHTS, IDS],
    fprop=fprop,
    call=lambda layer, *args: _results(layer(*args)),
  )


@pytest.mark.parametrize('scale', [False, True])
@pytest.mark.parametrize('by_class', [False, True])
def test_shared_embedding_softmax(layers, by_class, scale):
  """Lookups and logits of one matrix, its gradient by way of both."""
  softmax = layers.SimpleFullSoftmax.Params().Set(
    use_num_classes_major_weight=by_class
  )
  params = layers.SharedSoftmaxLayer.Params().Set(
    **LINEAR, softmax=softmax, scale_sqrt_depth=scale
  )
  if by_class:
    cls = embedding_softmax.NClassMajorSharedEmbeddingSoftmax
    variables = _variables(softmax__weight_0='w', softmax__bias_0='bias/b')
  else:
    cls = embedding_softmax.SharedEmbeddingSoftmax
    variables = _variables(
      softmax__weight_0='logits_ffn/linear/w',
      softmax__bias_0='logits_ffn/bias/b',
    )

  def fprop(layer, theta, x, weights, ids):
    output = layer.FProp(theta, x, weights, class_ids=ids[..., None])
    return {**_results(output), 'vectors': layer.EmbLookup(theta, ids)}

  def call(layer, x, weights, ids):
    output = layer(x, weights, class_ids=ids)
    return {**_results(output), 'vectors': layer.emb_lookup(ids)}

  check_pair(
    params,
    cls.config(**FIELDS, scale_sqrt_depth=scale),
    variables,
    [X, WEIGHTS, IDS],
    fprop=fprop,
    call=call,
  )


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_lookup_in_the_matrix_of_a_softmax(layers, style):
  params = layers.SingleShardSharedEmbeddingSoftmax.Params().Set(
    **LINEAR,
    vocab_size=V,
    embedding_dim=D,
    emb_with_matmul=style == 'matmul',
    scale_sqrt_depth=True,
  )
  config = embedding_softmax.SharedEmbeddingSoftmax.config(
    **FIELDS, lookup_style=style, scale_sqrt_depth=True
  )
  check_pair(
    params,
    config,
    _variables(linear__w='logits_ffn/linear/w', bias__b='logits_ffn/bias/b'),
    [IDS],
    fprop=lambda layer, theta, ids: layer.EmbLookup(theta, ids),
    call=lambda layer, ids: layer.emb_lookup(ids),
  )


def test_sigmoid_cross_entropy(layers):
  _check(
    layers.SimpleFullSigmoidCrossEntropy.Params().Set(
      **LINEAR, logits_soft_max=3.0
    ),
    sigmoid_cross_entropy.SigmoidCrossEntropy.config(
      **FIELDS, soft_cap_logits=3.0
    ),
    _variables(weight_0='logits_ffn/linear/w', bias_0='logits_ffn/bias/b'),
    targets='probabilities',
    # Lingvo's log_probs have lost their shape.
    names=(*_RESULTS, 'logits'),
  )


@pytest.mark.parametrize('all_positions', [False, True])
@pytest.mark.parametrize('abs_max', [None, 0.5])
def test_gshard_softmax(all_positions, abs_max):
  """With smoothed labels and a z-loss, which Lingvo's loss contains."""
  gshard = lingvo_runtime.module('lingvo.core.gshard_layers')
  common = {
    'logits_abs_max': abs_max,
    'use_tgt_labels_size_as_loss_denominator': all_positions,
  }
  params = gshard.SharedEmbeddingSoftmaxLayer.Params().Set(
    name='emb',
    vocab_size=V,
    max_len=1,
    embedding_dim=D,
    z_loss_coef=1e-2,
    label_smoothing=0.2,
    **common,
  )
  config = embedding_softmax.GShardSharedEmbeddingSoftmax.config(
    **FIELDS, z_loss_weight=1e-2, label_smoothing_prob=0.2, **common
  )

  def fprop(layer, theta, x, weights, ids):
    segment_ids = lingvo_runtime.module('tensorflow').cast(weights, 'int32')
    losses, _ = layer.ComputeLoss(theta, x, ids, segment_ids)
    # The positions' vectors are not part of our layer.
    vectors = layer.FProp(theta, ids, 0 * ids) - theta.pos_emb[0]
    return {
      'loss': losses['loss'][0],
      'z_loss': losses['avg_z_loss_inc'][0],
      'vectors': vectors,
    }

  def call(layer, x, weights, ids):
    output = layer(x, weights, class_ids=ids)
    return {
      'loss': output.avg_xent + output.z_loss,
      'z_loss': output.z_loss,
      'vectors': layer.emb_lookup(ids),
    }

  check_pair(
    params,
    config,
    _variables(embedding='embedding/w'),
    [X, WEIGHTS, IDS],
    fprop=fprop,
    call=call,
    do_eval=False,
    only_lingvos=['pos_emb'],
  )
