"""Embeddings of tokens and positions against Lingvo's, run for real.

Shapes: B batch, T time, V vocabulary, P positions, D model dims.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Variable, VariableMap
from pax_compat.layers.embeddings import embedding_tables, positional_embeddings
from tests.adaptors.translate.parity import check_pair

B, T, V, P, D = 3, 7, 11, 9, 8
IDS = np.random.default_rng(2).integers(0, V, [B, T]).astype(np.int32)
POSITIONS = np.random.default_rng(3).integers(0, P, [B, T]).astype(np.int32)


@pytest.fixture(scope='module')
def layers():
  return lingvo_runtime.module('lingvo.core.layers')


def _check(params, config, theirs):
  check_pair(
    params,
    config,
    VariableMap([Variable((theirs,), 'emb_var')]),
    [IDS],
    fprop=lambda layer, theta, ids: layer.EmbLookup(theta, ids),
    call=lambda layer, ids: layer(ids),
  )


@pytest.mark.parametrize(
  ('mode', 'style', 'scale'),
  [
    ('gather', 'index', False),
    ('gather', 'index', True),
    ('matmul', 'matmul', False),
    ('matmul', 'matmul', True),
    # With a scale, Lingvo's loop multiplies the gradient by it twice.
    ('loop', 'index', False),
  ],
)
def test_embedding(layers, mode, style, scale):
  params = layers.SimpleEmbeddingLayer.Params().Set(
    name='emb',
    vocab_size=V,
    embedding_dim=D,
    fprop_mode=mode,
    scale_sqrt_depth=scale,
  )
  config = embedding_tables.Embedding.config(
    num_classes=V, input_dims=D, lookup_style=style, scale_sqrt_depth=scale
  )
  _check(params, config, 'wm')


def test_embedding_by_einsum(layers):
  params = layers.EinsumEmbeddingLayer.Params().Set(
    name='emb', vocab_size=V, embedding_dim=D
  )
  config = embedding_tables.Embedding.config(
    num_classes=V, input_dims=D, lookup_style='matmul'
  )
  _check(params, config, 'wm')


@pytest.mark.parametrize('style', ['index', 'matmul'])
@pytest.mark.parametrize('given', [False, True])
def test_trainable_positions(layers, style, given):
  params = layers.LearnablePositionalEmbeddingLayer.Params().Set(
    name='pos', embedding_dim=D, max_pos=P
  )
  config = positional_embeddings.TrainablePositionalEmbedding.config(
    embedding_dims=D, max_seq_length=P, lookup_style=style
  )

  def fprop(layer, theta, *positions):
    if given:
      return layer.FPropWithPosition(theta, *positions)
    return layer.FProp(theta, T)[None]

  check_pair(
    params,
    config,
    VariableMap([Variable(('pos_embs',), 'emb_var')]),
    [POSITIONS] if given else [],
    fprop=fprop,
    call=lambda layer, *x: layer(None if given else T, *x),
  )


@pytest.mark.parametrize('dims', [2, 8])
@pytest.mark.parametrize('timescales', [(1, 10_000), (2, 100)])
def test_sinusoidal_positions(layers, dims, timescales):
  low, high = timescales
  params = layers.PositionalEmbeddingLayer.Params().Set(
    name='pos', embedding_dim=dims, min_timescale=low, max_timescale=high
  )
  config = positional_embeddings.PositionalEmbedding.config(
    embedding_dims=dims, min_timescale=low, max_timescale=high
  )
  check_pair(
    params,
    config,
    VariableMap([]),
    [POSITIONS],
    fprop=lambda layer, theta, x: layer.FPropWithPosition(theta, x),
    call=lambda layer, x: layer(position=jnp.asarray(x)),
  )
