"""Translators of the parts of Lingvo's GPipe stacks: what is in one cell."""

import dataclasses
from typing import NamedTuple

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import base_fields
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
  """The names of a layer's fields.

  Attributes:
    normalize: whether the output is normalised.
    dims: the dims of input and output.
  """

  normalize: str
  dims: str


BATCH_MAJOR = Names('output_layer_norm', 'input_dim')
TIME_MAJOR = Names('normalize_output', 'source_dim')


class Embedding(NamedTuple):
  """What a GPipe stack's embedding layer is here.

  Attributes:
    tokens: of tokens.
    positions: of positions.
    drop: probability that an element of their sum is dropped.
  """

  tokens: Translated
  positions: Translated
  drop: float


@translates(f'{_GPIPE}.GPipeBatchMajorTransformerEmbeddingLayer')
def embedding(view: ParamsView) -> Embedding | None:
  """`GPipeBatchMajorTransformerEmbeddingLayer`, of the source only."""
  view.get('params_init')  # For children, which take it over.
  on_one_device(view)
  view.require('add_tgt_embedding_layer', False)
  view.require('packed_input', False)
  view.ignore('there is no target', 'target_vocab_size')
  view.ignore('it concerns decoding of a target', 'max_seq_len')
  base_fields(view)
  tokens = registry.translate(view.child('token_emb'))
  positions = registry.translate(view.child('position_emb'))
  keep = registry.translate(
    view.child('dropout_tpl', keep_prob=1.0 - view.get('input_dropout_prob'))
  )
  if None in (tokens, positions, keep):
    return None
  # Summed over micro-batches, no gradient of the table is sparse.
  tokens.config.sparse_gradients = False
  variables = VariableMap(
    dataclasses.replace(v, is_sparse=False) for v in tokens.variables
  )
  tokens = Translated(tokens.config, variables)
  return Embedding(tokens, positions, 1.0 - keep)


@translates(f'{_GPIPE}.GPipeTransformerEmbeddingLayer')
def time_major_embedding(view: ParamsView) -> Embedding | None:
  """`GPipeTransformerEmbeddingLayer`, likewise; layouts do not matter here."""
  for name in ('enc_task_emb', 'dec_task_emb'):
    view.require(name, None)
  view.require('is_transparent', False)
  view.require('ret_task_ids', False)
  view.get('batch_dim')  # The stack says which it is.
  return embedding(view)


@translates(f'{_GPIPE}.GPipeTransformerSoftmaxLayer')
@translates(f'{_GPIPE}.GPipeBatchMajorTransformerSoftmaxLayer')
def softmax(view: ParamsView) -> Translated:
  """The stacks' softmaxes, which compute all logits, and never in chunks."""
  view.require('inputs_from_decoder', False)
  view.require('num_sampled', 0)
  return full_softmax(view)


@translates('lingvo.core.batch_major_attention.GPipeBatchMajorTransformerLayer')
def batch_major_layer(view: ParamsView) -> Translated | None:
  """`GPipeBatchMajorTransformerLayer` of an encoder."""
  return _with_norm(view, BATCH_MAJOR, batch_major_transformer)


@translates(f'{_GPIPE}.GPipeTransformerLayer')
def time_major_layer(view: ParamsView) -> Translated | None:
  """`GPipeTransformerLayer` of an encoder."""
  view.require('is_transparent', False)
  view.ignore(
    'is_transparent is off', 'transparent_merger_tpl', 'final_enc_layer'
  )
  return _with_norm(view, TIME_MAJOR, time_major_transformer)


def _with_norm(view: ParamsView, names: Names, module) -> Translated | None:
  """Translates a layer whose output may be normalised.

  Args:
    view: of the layer.
    names: of the layer's fields.
    module: the module that translates the rest of the layer.
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
  """Returns the view of the normalisation of a layer's output."""
  return view.child('ln_tpl', input_dim=view.get(names.dims))
