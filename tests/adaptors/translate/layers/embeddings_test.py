"""Translated embeddings against Lingvo's.

Legend: B batch, T time, D dims, V vocabulary.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Interleave
from tests.adaptors.translate import parity

B, T, D = 3, 7, 8


def _params(name, vocab, **fields):
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = getattr(layers, name).Params()
  # Lingvo takes layers of one name for the same.
  return params.Set(
    name=f'{name}_{vocab}', vocab_size=vocab, embedding_dim=D, **fields
  )


def _check(params):
  ids = np.random.default_rng(2).integers(0, params.vocab_size, [B, T])
  ids[0, :2] = [0, params.vocab_size - 1]
  parity.check_layer(
    params,
    [ids.astype(np.int32)],
    fprop=lambda layer, theta, x: layer.EmbLookup(theta, x),
    call=lambda layer, x: layer(x),
  )


@pytest.mark.parametrize('vocab', [70_001, 98_304])
def test_an_embedding_in_several_shards(vocab):
  """Three of them, of which the last has fewer rows than the others, or not."""
  params = _params(
    'EmbeddingLayer', vocab, max_num_shards=8, scale_sqrt_depth=True
  )
  (variable,) = parity.translate(params).variables
  assert variable.theta == ('wm[0]', 'wm[1]', 'wm[2]')
  _check(params)


@pytest.mark.parametrize(
  ('fields', 'sparse'),
  [
    ({'scale_sqrt_depth': True}, True),
    ({'use_matmul': True}, False),
    ({'fprop_mode': 'matmul', 'scale_sqrt_depth': True}, False),
    ({'fprop_mode': 'gather', 'use_matmul': True}, True),
    ({'fprop_mode': 'loop'}, False),
  ],
)
def test_a_simple_embedding(fields, sparse):
  params = _params('SimpleEmbeddingLayer', 11, **fields)
  assert parity.translate(params).config.sparse_gradients == sparse
  _check(params)


@pytest.mark.parametrize(
  ('name', 'sparse'),
  [('SingleShardEmbeddingLayer', True), ('EinsumEmbeddingLayer', False)],
)
@pytest.mark.parametrize('scale', [True, False])
def test_an_embedding_of_one_variable(name, sparse, scale):
  params = _params(name, 11 + scale, scale_sqrt_depth=scale)
  assert parity.translate(params).config.sparse_gradients == sparse
  _check(params)


def _positions(name, **fields):
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = getattr(layers, name).Params()
  name = '_'.join([name, *fields])
  return params.Set(name=name, embedding_dim=D, **fields)


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('LearnablePositionalEmbeddingLayer', {'max_pos': 9}),
    (
      'PositionalEmbeddingLayer',
      {'trainable_scaling': True, 'trainable_scaling_init': 0.25},
    ),
    ('PositionalEmbeddingLayer', {'frequency_scaling': True}),
    (
      'PositionalEmbeddingLayer',
      {'trainable_scaling': True, 'frequency_scaling': True},
    ),
  ],
)
def test_positions_with_weights(name, fields):
  """Counted from 0, and given."""
  params = _positions(name, **fields)
  given = np.array([[0, 1, 2, 0, 1], [4, 3, 0, 1, 1]], np.int32)
  parity.check_layer(
    params,
    [],
    fprop=lambda layer, theta: {
      'counted': layer.FProp(theta, T),
      'given': layer.FPropWithPosition(theta, given),
    },
    call=lambda layer: {
      'counted': layer(T)[0],
      'given': layer(position=given),
    },
  )


def test_a_scale_that_is_not_there_is_noted():
  params = _positions('PositionalEmbeddingLayer', trainable_scaling_init=2.0)
  assert not parity.issues_of(params)


@pytest.mark.parametrize(
  'name',
  [
    'SinusoidalPositionalEmbeddingLayer',
    'OneHotEmbeddingLayer',
  ],
)
def test_other_classes_are_refused_by_name(name):
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = getattr(layers, name).Params().Set(name=name)
  (found,) = parity.issues_of(params)
  assert f'lingvo.core.layers.{name}' in found


@pytest.mark.parametrize(
  ('fields', 'issue'),
  [
    ({'apply_pruning': True}, 'apply_pruning'),
    ({'use_3d_weight_tensor': True}, 'use_3d_weight_tensor'),
    ({'fprop_mode': 'loop', 'scale_sqrt_depth': True}, 'fprop_mode'),
  ],
)
def test_what_is_not_translated_is_refused(fields, issue):
  (found,) = parity.issues_of(_params('SimpleEmbeddingLayer', 11, **fields))
  assert f'layer.{issue}' in found


def test_interleaved_rows():
  """Row i is in part i modulo 3, and what is missing at the end is zero."""
  rows = np.arange(14).reshape(7, 2)
  interleaved = Interleave(3, 7)
  parts = interleaved.to_lingvo(rows)
  for part, expected in zip(
    parts,
    [
      [[0, 1], [6, 7], [12, 13]],
      [[2, 3], [8, 9], [0, 0]],
      [[4, 5], [10, 11], [0, 0]],
    ],
    strict=True,
  ):
    np.testing.assert_array_equal(part, expected)
  np.testing.assert_array_equal(interleaved.to_jax(parts), rows)
