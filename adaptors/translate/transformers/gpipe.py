"""Translators of Lingvo's GPipe stacks.

Splitting a stack over devices and a batch into micro-batches changes no result.
"""

from typing import NamedTuple

import numpy as np

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import gpipe_parts, pipelines
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from pax_compat.layers.transformers.transparent_transformers import (
  TransparentTransformer,
)

_GPIPE = 'lingvo.core.layers_with_gpipe'
# The axes of a pipeline's mesh: stages, and shards of a batch.
_MESH_AXES = (pipelines.STAGE_AXIS, 'data')


@translates('lingvo.tasks.lm.layers.GPipeTransformerLm')
def gpipe_transformer_lm(view: ParamsView) -> Translated | None:
  """Returns the config of the stack, which is the whole network."""
  view.require('packed_input', False)
  on_one_device(view)
  stack = registry.translate(view.child('stack'))
  vocab = view.get('vocab_size')
  if stack is None:
    return None
  if stack.config.vocab_size != vocab:
    view.issue(
      'vocab_size',
      f"{vocab} is not the num_classes of the stack's softmax,"
      f' {stack.config.vocab_size}',
    )
  config = stack.config.set(**view.base_fields())
  return Translated(config, stack.variables.under('stack', ''))


@translates(f'{_GPIPE}.GPipeBatchMajorTransformerStack')
def batch_major_stack(view: ParamsView) -> Translated | None:
  """Returns a language model, as `_stack` does."""
  view.require('batch_dim', 0)
  return _stack(view, gpipe_parts.BATCH_MAJOR, normalize=True)


@translates(f'{_GPIPE}.GPipeTransformerStack')
def time_major_stack(view: ParamsView) -> Translated | None:
  """Returns a language model, as `_stack` does."""
  view.require('batch_dim', 1)
  view.ignore('Lingvo does not read it', 'use_pipelined_embeddings')
  return _stack(
    view, gpipe_parts.TIME_MAJOR, normalize=view.get('normalize_encoder')
  )


def _stack(
  view: ParamsView, names: gpipe_parts.Names, *, normalize: bool
) -> Translated | None:
  """Translates an embedding, a stack of encoder layers and a softmax.

  Args:
    view: of the stack.
    names: of the layers' fields.
    normalize: whether the last layer's output is normalised.
  """
  _check_encoders_only(view)
  mesh = _mesh_shape(view)
  prob = _label_smoothing(view)
  parts = _parts(view, names, normalize)
  if parts is None or prob is None:
    return None
  emb, layer, norm, softmax = parts
  stack = _layers(view, layer, mesh)
  if stack is not None and 'is_transparent' in view.params:
    stack = _maybe_transparent(view, stack)
  if stack is None:
    return None
  fields = {}
  if mesh is not None:
    fields = dict(
      ici_mesh_shape=mesh, mesh_axis_names=list(_MESH_AXES[: len(mesh)])
    )
  config = TransformerLm.config(
    vocab_size=softmax.config.num_classes,
    model_dims=layer.config.input_dims,
    model_type=(
      LanguageModelType.CAUSAL
      if layer.config.mask_self_attention
      else LanguageModelType.BIDIRECTIONAL
    ),
    separate_embedding_tpl=emb.tokens.config,
    position_emb_tpl=emb.positions.config,
    input_dropout_prob=emb.drop,
    stacked_transformer_tpl=stack.config,
    final_ln_tpl=None if norm is None else norm.config,
    softmax_tpl=softmax.config.set(label_smoothing_prob=prob),
    **fields,
  )
  variables = emb.tokens.variables.under(
    'cell_0.emb.src_token_emb', 'embedding_lookup'
  ) + stack.variables.under('', 'transformer')
  if norm is not None:
    variables += norm.variables.under(
      f'{_theta(view)[-1]}.layer_norm', 'final_ln'
    )
  last = f'cell_{_number_of_cells(view) - 1}'
  variables += softmax.variables.under(f'{last}.softmax', 'softmax')
  return Translated(config, variables)


def _layers(
  view: ParamsView, layer: Translated, mesh: list[int] | None
) -> Translated | None:
  """Returns the layers; as a pipeline if there is a mesh.

  Args:
    view: of the stack.
    layer: the translation of one layer.
    mesh: the shape of the mesh, or None.
  """
  theta, microbatches = _theta(view), view.get('num_micro_batches')
  if mesh is not None:
    view.ignore('num_micro_batches sets it', 'micro_batch_size')
    if not _fits(view, mesh):
      return None
    return pipelines.of_layers(
      view,
      layer,
      theta,
      stages=mesh[0],
      microbatches=microbatches,
    )
  view.ignore(
    'without a device_mesh it is not pipelined, and the result is the same',
    'splits',
    'num_micro_batches',
    'micro_batch_size',
  )
  config = StackedTransformer.config(
    model_dims=layer.config.input_dims,
    num_layers=len(theta),
    transformer_layer_params_tpl=layer.config,
  )
  variables = VariableMap()
  for i, path in enumerate(theta):
    variables += layer.variables.under(path, f'x_layers_{i}')
  return Translated(config, variables)


def _maybe_transparent(
  view: ParamsView, stack: Translated
) -> Translated | None:
  """Returns the stack; with `is_transparent`, one that mixes all outputs."""
  drop = view.get('transparent_merger_dropout_prob')
  if not view.get('is_transparent'):
    view.ignore('is_transparent is off', 'transparent_merger_tpl')
    return stack
  config = stack.config
  if config.cls is not StackedTransformer:
    view.issue('is_transparent', 'not translated over a device_mesh')
    return None
  if config.transformer_layer_params_tpl.output_norm_tpl is not None:
    view.issue(
      'encoder_tpl.normalize_output', 'not translated with is_transparent'
    )
  template = view.get('transparent_merger_tpl').Copy()
  template.dropout_tpl.keep_prob = 1 - drop
  mix = registry.translate(
    view.adopt(
      template, 'transparent_merger_tpl', num_sources=config.num_layers + 1
    )
  )
  if mix is None:
    return None
  mixed = TransparentTransformer.config(
    model_dims=config.model_dims,
    num_layers=config.num_layers,
    transformer_layer_params_tpl=config.transformer_layer_params_tpl,
    **mix.config,
  )
  first = f'{_theta(view)[0]}.transparent_merger'
  return Translated(mixed, stack.variables + mix.variables.under(first, ''))


@translates(f'{_GPIPE}.DeterministicWeightsLayer')
def mixing_weights(view: ParamsView) -> Translated | None:
  """Returns fields of a `TransparentTransformer`, and variables."""
  view.get('num_sources')  # The stack knows the number.
  view.ignore('Lingvo does not read it', 'weighted_merger_dropout_prob')
  keep = registry.translate(view.child('dropout_tpl'))
  if keep is None:
    return None
  return Translated(
    dict(
      mixing_dropout_prob=1.0 - keep,
      mixing_softmax=view.get('weighted_merger_softmax'),
      mixing_scale=float(view.get('global_weight_scale')),
      minimal_share=float(view.get('minimal_prob')),
    ),
    VariableMap([Variable(('sum_weight',), 'mixing')]),
  )


class _Parts(NamedTuple):
  """The children of a stack.

  Attributes:
    emb: the embedding.
    layer: one of the layers, which are all alike.
    norm: the norm after the last layer; None if all layers or none have one.
    softmax: the softmax.
  """

  emb: gpipe_parts.Embedding
  layer: Translated
  norm: Translated | None
  softmax: Translated


def _parts(
  view: ParamsView, names: gpipe_parts.Names, normalize: bool
) -> _Parts | None:
  """Translates the children of a stack; see `_stack`."""
  emb_tpl, encoder_tpl = view.get('emb_tpl').Copy(), view.get('encoder_tpl')
  if _number_of_cells(view) > 1 or view.get('num_micro_batches') > 1:
    # As Lingvo does; the fields of the replaced dropout layers have no effect.
    layers = lingvo_runtime.module('lingvo.core.layers')
    emb_tpl.dropout_tpl = layers.DeterministicDropoutLayer.Params()
    encoder_tpl = encoder_tpl.cls.SetupDeterministicDropout(encoder_tpl.Copy())
  packed = view.get('packed_input')
  emb = registry.translate(
    view.adopt(
      emb_tpl, 'emb_tpl', packed_input=packed, add_tgt_embedding_layer=False
    )
  )
  encoder = view.adopt(encoder_tpl, 'encoder_tpl', packed_input=packed)
  layer, norm = registry.translate(encoder), None
  if normalize and not encoder.params.Get(names.normalize):
    norm = registry.translate(gpipe_parts.norm_view(encoder, names))
    if norm is None:
      return None
  softmax = registry.translate(
    view.child('softmax_tpl', inputs_from_decoder=False)
  )
  if None in (emb, layer, softmax):
    return None
  _check_dims(view, emb, layer, softmax)
  return _Parts(emb, layer, norm, softmax)


def _check_encoders_only(view: ParamsView):
  """Reads the fields of decoder layers and of Lingvo's execution."""
  view.require('num_decoder_layers', 0)
  view.ignore('num_decoder_layers is 0', 'decoder_tpl')
  view.require('before_tpl', [])
  view.ignore('Lingvo sets it itself', 'cell_tpl', 'state_dtype')
  view.ignore('Lingvo does not read it', 'model_dim', 'nested_map_fprop')
  view.ignore(
    'without a device_mesh for weights it does nothing',
    'weight_split_dims_mapping',
    'activation_split_dims_mapping',
  )
  if view.get('num_encoder_layers') < 1:
    view.issue('num_encoder_layers', 'expected 1 or more')


def _mesh_shape(view: ParamsView) -> list[int] | None:
  """Returns the shape of a pipeline's mesh; None if there is none.

  GPipe itself takes devices from the cluster, which Params do not describe.
  """
  mesh = view.get('device_mesh')
  # No other axis shards the layers.
  view.params.device_mesh = None
  return None if mesh is None else list(np.shape(mesh))


def _fits(view: ParamsView, mesh: list[int]) -> bool:
  """Whether the stack's cells fit a mesh; adds an issue if they do not."""
  parts, cells = _number_of_cells(view), _cells(view)
  if not 1 <= len(mesh) <= len(_MESH_AXES) or mesh[0] != parts:
    view.issue(
      'device_mesh',
      f'its shape is {mesh}; expected {[parts]}, a device for each part, or'
      ' additionally the number of shards of a batch',
    )
    return False
  if len({cells.count(part) for part in range(parts)}) > 1:
    view.issue(
      'splits',
      f'{view.params.splits} are parts of different sizes; the stages of a'
      ' pipeline over a device_mesh have one size',
    )
    return False
  return True


def _check_dims(view: ParamsView, emb: gpipe_parts.Embedding, layer, softmax):
  """Adds issues if dims or vocabularies of the children differ."""
  dims = layer.config.input_dims
  for name, found in (
    ('emb_tpl.token_emb.embedding_dim', emb.tokens.config.input_dims),
    ('emb_tpl.position_emb.embedding_dim', emb.positions.config.embedding_dims),
    ('softmax_tpl.input_dim', softmax.config.input_dims),
  ):
    if found != dims:
      view.issue(name, f'{found} is not the dims of the layers, {dims}')
  tokens, classes = emb.tokens.config.num_classes, softmax.config.num_classes
  if tokens != classes:
    view.issue(
      'softmax_tpl.num_classes',
      f'{classes} is not the vocab_size of emb_tpl.token_emb, {tokens}',
    )


def _label_smoothing(view: ParamsView) -> float | None:
  """Returns the probability that label smoothing gives to other labels."""
  if not view.get('label_smoothing'):
    return 0.0
  classes = view.params.softmax_tpl.num_classes
  if view.params.label_smoothing.num_classes != classes:
    view.issue('label_smoothing.num_classes', f'expected {classes}')
  return registry.translate(view.child('label_smoothing'))


def _number_of_cells(view: ParamsView) -> int:
  splits = view.get('splits')
  return len(splits) if isinstance(splits, list | tuple) else splits


def _cells(view: ParamsView) -> list[int]:
  """Returns the index of each encoder layer's cell."""
  splits, count = view.get('splits'), view.get('num_encoder_layers')
  if isinstance(splits, list | tuple):
    ends = list(splits)
    if ends[-1] != count or ends != sorted(ends):
      view.issue(
        'splits', f'expected increasing ends of parts, the last one {count}'
      )
  else:
    ends = [(i + 1) * -(-count // splits) for i in range(splits)]
  return [sum(i >= end for end in ends) for i in range(count)]


def _theta(view: ParamsView) -> list[str]:
  """Returns the paths of the encoder layers in Lingvo."""
  return [f'cell_{cell}.encoder_{i}' for i, cell in enumerate(_cells(view))]
