"""Initial weights of translated layers against Lingvo's.

The numbers differ, since the generators do; their distributions must not. Each
weight is compared as the variable that it is in Lingvo, shard by shard.

A layer is a line in `CASES`. Its weights should have some thousand elements
each, so that a wrong fan shows.

Legend: D input dims, V classes.
"""

import itertools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import base_layer, learners
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import translate

D, V = 48, 120

# Standard errors that a moment may be off. There are some hundred moments.
_ERRORS = 5.0

VECTORS = np.zeros([1, 2, D], np.float32)
IDS = np.zeros([1, 2], np.int32)
PADDINGS = np.zeros([1, 2], np.float32)
LOSS = (VECTORS, 1 - PADDINGS, IDS)
STEPS = (NestedMap(act=VECTORS, padding=PADDINGS[..., None]),)


class Case(NamedTuple):
  """A layer whose initial weights are compared.

  Attributes:
    module: the Lingvo module of its class.
    cls: the name of its class.
    inputs: what the layer here is called with, to make its weights.
    fields: of its Params, by dotted names.
  """

  module: str
  cls: str
  inputs: tuple
  fields: dict[str, Any] = {}


_ATTENTION = {
  'atten_tpl.enable_ctx_pre_proj': True,
  'num_attention_heads': 4,
}
_HEADS = {
  'source_dim': D,
  'query_dim': D,
  'context_dim': D,
  'hidden_dim': 2 * D,
  'ctx_post_proj_dim': D,
  'num_attention_heads': 4,
  'use_source_vec_as_attention_value': False,
  'enable_ctx_pre_proj': True,
  'enable_ctx_post_proj': True,
}
_LAYER = {
  'source_dim': D,
  'tr_fflayer_tpl.hidden_dim': 3 * D,
  'tr_atten_tpl.num_attention_heads': 4,
  'tr_atten_tpl.atten_tpl.enable_ctx_pre_proj': True,
}
_CELL = {'num_input_nodes': D, 'num_output_nodes': D, 'num_hidden_nodes': 2 * D}
_CELL_TPL = {f'cell_tpl.{name}': value for name, value in _CELL.items()}
_TABLE = {'vocab_size': V, 'embedding_dim': D}
_SOFTMAX = {'input_dim': D, 'num_classes': V}
_LM = {
  'vocab_size': V,
  'model_dim': D,
  'num_trans_layers': 1,
  'trans_tpl.tr_fflayer_tpl.hidden_dim': 3 * D,
}

CASES = {
  'projection': Case(
    'core.layers',
    'ProjectionLayer',
    (VECTORS,),
    {'input_dim': D, 'output_dim': V, 'batch_norm': False, 'bias_init': 0.5},
  ),
  'layer norm': Case('core.layers', 'LayerNorm', (VECTORS,), {'input_dim': D}),
  'embedding': Case(
    'core.layers', 'EmbeddingLayer', (IDS,), {**_TABLE, 'max_num_shards': 1}
  ),
  'embedding in shards': Case(
    'core.layers',
    'EmbeddingLayer',
    (IDS,),
    {'vocab_size': 11_000, 'embedding_dim': D, 'max_num_shards': 2},
  ),
  'simple embedding': Case(
    'core.layers', 'SimpleEmbeddingLayer', (IDS,), _TABLE
  ),
  'einsum embedding': Case(
    'core.layers', 'EinsumEmbeddingLayer', (IDS,), _TABLE
  ),
  'single shard': Case(
    'core.layers', 'SingleShardEmbeddingLayer', (IDS,), _TABLE
  ),
  'learned positions': Case(
    'core.layers',
    'LearnablePositionalEmbeddingLayer',
    (2,),
    {'embedding_dim': D, 'max_pos': V},
  ),
  'scaled positions': Case(
    'core.layers',
    'PositionalEmbeddingLayer',
    (2,),
    {'embedding_dim': D, 'trainable_scaling': True, 'frequency_scaling': True},
  ),
  'softmax in shards': Case(
    'core.layers',
    'SimpleFullSoftmax',
    LOSS,
    {**_SOFTMAX, 'num_shards': 2, 'bias_init': 0.25},
  ),
  'softmax by class': Case(
    'core.layers',
    'SimpleFullSoftmax',
    LOSS,
    {**_SOFTMAX, 'num_shards': 2, 'use_num_classes_major_weight': True},
  ),
  'sampled softmax': Case(
    'core.layers',
    'SimpleFullSoftmax',
    LOSS,
    {**_SOFTMAX, 'num_shards': 2, 'num_sampled': 5},
  ),
  'shared softmax': Case(
    'core.layers',
    'SharedSoftmaxLayer',
    LOSS,
    {f'softmax.{name}': value for name, value in _SOFTMAX.items()},
  ),
  'einsum softmax': Case('core.layers', 'EinsumSoftmax', LOSS, _SOFTMAX),
  'single shard softmax': Case(
    'core.layers', 'SingleShardFullSoftmax', LOSS, _SOFTMAX
  ),
  'heads': Case(
    'core.attention', 'MultiHeadedAttention', (VECTORS,) * 3, _HEADS
  ),
  'heads that start as uniform numbers': Case(
    'core.attention',
    'MultiHeadedAttention',
    (VECTORS,) * 3,
    {**_HEADS, 'proj_init': 'uniform'},
  ),
  'additive attention': Case(
    'core.attention',
    'AdditiveAttention',
    (VECTORS,) * 3,
    {'source_dim': D, 'query_dim': D, 'hidden_dim': 2 * D},
  ),
  'Transformer attention': Case(
    'core.layers_with_attention',
    'TransformerAttentionLayer',
    (VECTORS,),
    {'source_dim': D, **_ATTENTION},
  ),
  'feed-forward': Case(
    'core.layers_with_attention',
    'TransformerFeedForwardLayer',
    (VECTORS,),
    {'input_dim': D, 'hidden_dim': 3 * D},
  ),
  'Transformer layer': Case(
    'core.layers_with_attention', 'TransformerLayer', (VECTORS,), _LAYER
  ),
  'LSTM': Case(
    'core.rnn_layers',
    'FRNN',
    STEPS,
    {f'cell.{name}': value for name, value in _CELL.items()},
  ),
  'stack of LSTMs': Case(
    'core.rnn_layers',
    'StackedFRNNLayerByLayer',
    STEPS,
    {**_CELL_TPL, 'num_layers': 2},
  ),
  'stack in both directions': Case(
    'core.rnn_layers',
    'StackedBiFRNNLayerByLayer',
    STEPS,
    {**_CELL_TPL, 'num_layers': 1},
  ),
  'Transformer': Case(
    'tasks.lm.layers',
    'TransformerLm',
    (IDS, PADDINGS),
    {**_LM, 'emb.vocab_size': V, 'emb.embedding_dim': D},
  ),
  'Transformer of vectors': Case(
    'tasks.lm.layers', 'TransformerLmNoEmbedding', (VECTORS, PADDINGS), _LM
  ),
  'RNN': Case(
    'tasks.lm.layers',
    'RnnLm',
    (IDS, PADDINGS),
    {
      'vocab_size': V,
      'emb.vocab_size': V,
      'emb.embedding_dim': D,
      'softmax.input_dim': D,
      'softmax.num_classes': V,
      'rnns.num_layers': 1,
      **{f'rnns.{name}': value for name, value in _CELL_TPL.items()},
    },
  ),
  'mixture of RNNs': Case(
    'tasks.lm.layers',
    'MoeLm',
    (IDS, PADDINGS),
    {
      'vocab_size': V,
      'number_of_experts': 1,
      'add_postgating_rnn': False,
      'emb.vocab_size': V,
      'emb.embedding_dim': D,
      **{f'rnns.{name}': value for name, value in _CELL_TPL.items()},
    },
  ),
}

_counter = itertools.count()


def _params(case: Case):
  module = lingvo_runtime.module(f'lingvo.{case.module}')
  # Lingvo takes layers of one name for the same.
  name = f'initial_{next(_counter)}'
  return getattr(module, case.cls).Params().Set(name=name, **case.fields)


def _lingvos(params) -> dict[str, np.ndarray]:
  """Returns what Lingvo draws, by theta path."""
  lingvo_runtime.module('tensorflow').random.set_seed(11)
  with lingvo_runtime.cluster():
    variables = params.Instantiate().vars.FlattenItems()
    return {path: v.numpy() for path, v in variables if v.trainable}


def _ours(params, inputs) -> dict[str, np.ndarray]:
  """Returns what we draw, as Lingvo's variables, by theta path."""
  translated = translate(params)
  layer = translated.config.Instantiate()
  weights = base_layer.unbox(layer.init(jax.random.key(1), *inputs))
  return translated.variables.to_lingvo(
    learners.by_path(weights[base_layer.PARAMS])
  )


def _check(ours: np.ndarray, theirs: np.ndarray, path: str):
  """Compares mean, deviation and bounds of the draws of a variable."""
  assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, path
  deviation, error = theirs.std(), _ERRORS * theirs.size**-0.5
  if not deviation:
    np.testing.assert_array_equal(ours, theirs, err_msg=path)
    return
  # Both have errors, so the standard error of the difference is sqrt(2) larger;
  # that of a normal distribution's deviation is sqrt(1/2) of the mean's.
  assert abs(ours.mean() - theirs.mean()) <= 2**0.5 * error * deviation, path
  assert abs(ours.std() / deviation - 1) <= error, path
  # Bounded numbers come close to their bounds, normal ones spread there.
  bounded = np.abs(theirs).max() < 2.4 * deviation
  slack = 40 * error**2 if bounded else 1.2
  for bound in (np.min, np.max):
    assert abs(bound(ours) - bound(theirs)) <= slack * deviation, path


@pytest.mark.parametrize('name', CASES)
def test_first_values(name):
  case = CASES[name]
  params = _params(case)
  ours, theirs = _ours(params, case.inputs), _lingvos(params)
  assert set(ours) == set(theirs)
  for path, values in theirs.items():
    _check(ours[path], values, path)
