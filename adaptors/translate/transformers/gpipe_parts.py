"""Translators of the layers in the cells of Lingvo's GPipe stacks."""

import dataclasses
from typing import NamedTuple

from adaptors.translate import registry
from adaptors.translate.layers.softmaxes import full_softmax
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import (
  batch_major_transformer,
  time_major_transformer,
)
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView

_GPIPE = 'lingvo.core.layers_with_gpipe'


class Names(NamedTuple):
  """Names of a layer's fields.

  Attributes:
    normalize: of the field that normalises the output.
    dims: of the field with the dims of input and output.
  """

  normalize: str
  dims: str


BATCH_MAJOR = Names('output_layer_norm', 'input_dim')
TIME_MAJOR = Names('normalize_output', 'source_dim')


class Embedding(NamedTuple):
  """A GPipe stack's embedding layer.

  Attributes:
    tokens: the embedding of tokens.
    positions: the embedding of positions.
    drop: the dropout probability of their sum.
  """

  tokens: Translated
  positions: Translated
  drop: float


@translates(f'{_GPIPE}.GPipeBatchMajorTransformerEmbeddingLayer')
def embedding(view: ParamsView) -> Embedding | None:
  """Returns the embeddings of a source, without a target."""
  on_one_device(view)
  view.require('add_tgt_embedding_layer', False)
  view.require('packed_input', False)
  view.ignore('the model has no target', 'target_vocab_size')
  view.ignore('it is for decoding a target', 'max_seq_len')
  view.base_fields()
  tokens = registry.translate(view.child('token_emb'))
  positions = registry.translate(view.child('position_emb'))
  keep = registry.translate(
    view.child('dropout_tpl', keep_prob=1.0 - view.get('input_dropout_prob'))
  )
  if None in (tokens, positions, keep):
    return None
  # The sum over micro-batches is dense.
  tokens.config.sparse_gradients = False
  variables = VariableMap(
    dataclasses.replace(v, is_sparse=False) for v in tokens.variables
  )
  tokens = Translated(tokens.config, variables)
  return Embedding(tokens, positions, 1.0 - keep)


@translates(f'{_GPIPE}.GPipeTransformerEmbeddingLayer')
def time_major_embedding(view: ParamsView) -> Embedding | None:
  """Returns the same as `embedding`."""
  for name in ('enc_task_emb', 'dec_task_emb'):
    view.require(name, None)
  view.require('is_transparent', False)
  view.require('ret_task_ids', False)
  view.get('batch_dim')  # The stack checks its own.
  return embedding(view)


@translates(f'{_GPIPE}.GPipeTransformerSoftmaxLayer')
@translates(f'{_GPIPE}.GPipeBatchMajorTransformerSoftmaxLayer')
def softmax(view: ParamsView) -> Translated:
  """Returns a softmax over all classes."""
  view.require('inputs_from_decoder', False)
  view.require('num_sampled', 0)
  return full_softmax(view)


@translates('lingvo.core.batch_major_attention.GPipeBatchMajorTransformerLayer')
def batch_major_layer(view: ParamsView) -> Translated | None:
  """Returns an encoder's layer."""
  return _with_norm(view, BATCH_MAJOR, batch_major_transformer)


@translates(f'{_GPIPE}.GPipeTransformerLayer')
def time_major_layer(view: ParamsView) -> Translated | None:
  """Returns an encoder's layer."""
  view.require('is_transparent', False)
  view.ignore(
    'is_transparent is off', 'transparent_merger_tpl', 'final_enc_layer'
  )
  return _with_norm(view, TIME_MAJOR, time_major_transformer)


def _with_norm(view: ParamsView, names: Names, module) -> Translated | None:
  """Translates a layer that may normalise its output.

  Args:
    view: of the layer.
    names: of the layer's fields.
    module: translates the rest of the layer with `transformer_layer`.
  """
  view.require('has_aux_atten', False)
  view.require('packed_input', False)
  layer = module.transformer_layer(view)
  if not view.get(names.normalize):
    view.get('ln_tpl')
    return layer
  norm = registry.translate(norm_view(view, names))
  if None in (layer, norm):
    return None
  return Translated(
    layer.config.set(output_norm_tpl=norm.config),
    layer.variables + norm.variables.under('layer_norm', 'output_norm'),
  )


def norm_view(view: ParamsView, names: Names) -> ParamsView:
  """Returns the view of the norm of a layer's output."""
  return view.child('ln_tpl', input_dim=view.get(names.dims))
