"""Translators of Lingvo's embeddings of tokens and learned positions."""

import math

from adaptors.translate.layers.basic_layers import weight_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import (
  Identity,
  Interleave,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat.layers.embeddings import embedding_tables, positional_embeddings

# Lingvo's `EmbeddingLayer` never makes a shard smaller than this.
_MIN_VALUES_PER_SHARD = 1024 * 256


@translates('lingvo.core.layers.EmbeddingLayer')
def embedding(view: ParamsView) -> Translated:
  """Returns an embedding with one table, made of Lingvo's shards."""
  vocab, dims = view.get('vocab_size'), view.get('embedding_dim')
  view.ignore('there are no parameter servers', 'on_ps')
  shards = min(
    view.get('max_num_shards'),
    math.ceil(vocab * dims / _MIN_VALUES_PER_SHARD),
  )
  rows = math.ceil(vocab / shards)
  config = embedding_tables.Embedding.config(
    num_classes=vocab,
    input_dims=dims,
    scale_sqrt_depth=view.get('scale_sqrt_depth'),
    sparse_gradients=True,
    params_init=weight_init(view, (rows, dims)),
  )
  # tf.nn.embedding_lookup interleaves the rows of its shards ("mod").
  transform = Interleave(shards, vocab) if shards > 1 else Identity()
  theta = tuple(f'wm[{i}]' for i in range(shards))
  table = Variable(theta, 'emb_var', transform, is_sparse=True)
  return Translated(config, VariableMap([table]))


@translates('lingvo.core.layers.SimpleEmbeddingLayer')
def simple_embedding(view: ParamsView) -> Translated:
  """Returns an embedding.

  Lingvo's lookup modes differ only in whether the gradient is sparse.
  """
  view.require('apply_pruning', False)
  view.require('pruning_hparams_dict', None)
  view.require('use_3d_weight_tensor', False)
  vocab, dims = view.get('vocab_size'), view.get('embedding_dim')
  by_product, mode = view.get('use_matmul'), view.get('fprop_mode')
  mode = mode or ('matmul' if by_product else 'gather')
  scale = view.get('scale_sqrt_depth')
  if mode == 'loop' and scale:
    view.issue(
      'fprop_mode',
      "in Lingvo the gradient of 'loop' with scale_sqrt_depth is scaled twice;"
      " that is not translated, only 'gather' and 'matmul'",
    )
  config = embedding_tables.Embedding.config(
    num_classes=vocab,
    input_dims=dims,
    scale_sqrt_depth=scale,
    sparse_gradients=mode == 'gather',
    params_init=weight_init(view, (vocab, dims)),
  )
  table = Variable(('wm',), 'emb_var', is_sparse=mode == 'gather')
  return Translated(config, VariableMap([table]))


@translates('lingvo.core.layers.SingleShardEmbeddingLayer')
def single_shard_embedding(view: ParamsView) -> Translated:
  config = embedding_tables.Embedding.config(
    sparse_gradients=True, **_fields(view)
  )
  return Translated(
    config, VariableMap([Variable(('emb_var',), 'emb_var', is_sparse=True)])
  )


@translates('lingvo.core.layers.EinsumEmbeddingLayer')
def einsum_embedding(view: ParamsView) -> Translated:
  """Returns an embedding with a dense gradient."""
  config = embedding_tables.Embedding.config(**_fields(view))
  return Translated(config, VariableMap([Variable(('wm',), 'emb_var')]))


def _fields(view: ParamsView) -> dict:
  """Returns the fields of an embedding whose table is one variable."""
  vocab, dims = view.get('vocab_size'), view.get('embedding_dim')
  return dict(
    num_classes=vocab,
    input_dims=dims,
    scale_sqrt_depth=view.get('scale_sqrt_depth'),
    params_init=weight_init(view, (vocab, dims)),
  )


@translates('lingvo.core.layers.LearnablePositionalEmbeddingLayer')
def learnable_positions(view: ParamsView) -> Translated:
  length, dims = view.get('max_pos'), view.get('embedding_dim')
  config = positional_embeddings.TrainablePositionalEmbedding.config(
    max_seq_length=length,
    embedding_dims=dims,
    lookup_style='index',
    params_init=weight_init(view, (length, dims)),
  )
  table = Variable(('pos_embs',), 'emb_var', is_sparse=True)
  return Translated(config, VariableMap([table]))
