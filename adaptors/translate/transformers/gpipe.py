"""Translators of Lingvo's GPipe stacks.

How a stack is cut into parts for several devices, and a batch into
micro-batches, changes none of its numbers.
"""

from typing import NamedTuple

import numpy as np

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import base_fields
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
# Of the mesh of a pipeline: its stages, and what batches are split over.
_MESH_AXES = (pipelines.STAGE_AXIS, 'data')


@translates('lingvo.tasks.lm.layers.GPipeTransformerLm')
def gpipe_transformer_lm(view: ParamsView) -> Translated | None:
  """`GPipeTransformerLm`: the stack has all of the network."""
  view.require('packed_input', False)
  view.get('params_init')  # For children, which take it over.
  on_one_device(view)
  stack = registry.translate(view.child('stack'))
  vocab = view.get('vocab_size')
  fields = base_fields(view)
  if stack is None:
    return None
  if stack.config.vocab_size != vocab:
    view.issue(
      'vocab_size',
      f"{vocab} is not the num_classes of the stack's softmax,"
      f' {stack.config.vocab_size}',
    )
  config = stack.config.set(**fields)
  return Translated(config, stack.variables.under('stack', ''))


@translates(f'{_GPIPE}.GPipeBatchMajorTransformerStack')
def batch_major_stack(view: ParamsView) -> Translated | None:
  """`GPipeBatchMajorTransformerStack`: ids in, the loss of labels out."""
  view.require('batch_dim', 0)
  return _stack(view, gpipe_parts.BATCH_MAJOR, normalize=True)


@translates(f'{_GPIPE}.GPipeTransformerStack')
def time_major_stack(view: ParamsView) -> Translated | None:
  """`GPipeTransformerStack`: as the batch-major one, in the other layout."""
  view.require('batch_dim', 1)
  view.ignore('Lingvo does not read it', 'use_pipelined_embeddings')
  return _stack(
    view, gpipe_parts.TIME_MAJOR, normalize=view.get('normalize_encoder')
  )


def _stack(
  view: ParamsView, names: gpipe_parts.Names, *, normalize: bool
) -> Translated | None:
  """Translates a stack of encoder layers between embedding and softmax.

  Args:
    view: of the stack.
    names: of the layers' fields.
    normalize: whether the last one's is.
  """
  view.get('params_init')  # For children, which take it over.
  _check_encoders_only(view)
  mesh = _mesh_shape(view)
  prob = _label_smoothing(view)
  parts = _parts(view, names, normalize)
  fields = base_fields(view)
  if parts is None or prob is None:
    return None
  emb, layer, norm, softmax = parts
  stack = _layers(view, layer, mesh)
  if stack is not None and 'is_transparent' in view.params:
    stack = _maybe_mixed(view, stack)
  if stack is None:
    return None
  if mesh is not None:
    fields |= dict(
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
  """Returns the layers: as a pipeline where there is a mesh for its stages.

  Args:
    view: of the stack.
    layer: each of the layers.
    mesh: the shape of the mesh.
  """
  theta, microbatches = _theta(view), view.get('num_micro_batches')
  if mesh is not None:
    view.ignore('num_micro_batches says it', 'micro_batch_size')
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
    'without a device_mesh of the stack there is no pipeline, and the numbers'
    ' are the same',
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


def _maybe_mixed(view: ParamsView, stack: Translated) -> Translated | None:
  """Returns the layers, with a mix of all of their outputs if it is so."""
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
  """`DeterministicWeightsLayer`: fields of a stack, and its variables."""
  view.get('params_init')  # The weights start as a constant.
  view.get('num_sources')  # The stack says it.
  view.ignore('Lingvo does not read it', 'weighted_merger_dropout_prob')
  keep = registry.translate(view.child('dropout_tpl'))
  base_fields(view)
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
  """What a stack is made of.

  Attributes:
    emb: its embedding.
    layer: each of its layers.
    norm: the normalisation of the last layer's output, where no other has one.
    softmax: its softmax.
  """

  emb: gpipe_parts.Embedding
  layer: Translated
  norm: Translated | None
  softmax: Translated


def _parts(
  view: ParamsView, names: gpipe_parts.Names, normalize: bool
) -> _Parts | None:
  """Translates the parts of a stack; see `_stack`."""
  emb_tpl, encoder_tpl = view.get('emb_tpl').Copy(), view.get('encoder_tpl')
  if _number_of_cells(view) > 1 or view.get('num_micro_batches') > 1:
    # As Lingvo does, which takes over nothing of the layers that were there.
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
  """Reads what concerns a target, or how Lingvo runs the stack."""
  view.require('num_decoder_layers', 0)
  view.ignore('num_decoder_layers is 0', 'decoder_tpl')
  view.require('before_tpl', [])
  view.ignore('Lingvo sets it itself', 'cell_tpl', 'state_dtype')
  view.ignore('Lingvo does not read it', 'model_dim', 'nested_map_fprop')
  view.ignore(
    'it is not said of weights',
    'weight_split_dims_mapping',
    'activation_split_dims_mapping',
  )
  if view.get('num_encoder_layers') < 1:
    view.issue('num_encoder_layers', 'expected 1 or more')


def _mesh_shape(view: ParamsView) -> list[int] | None:
  """Returns the shape of the mesh of a pipeline; None if there is none.

  GPipe itself goes by devices of a cluster, of which Params do not tell.
  """
  mesh = view.get('device_mesh')
  # The layers inside are split over no other axes.
  view.params.device_mesh = None
  return None if mesh is None else list(np.shape(mesh))


def _fits(view: ParamsView, mesh: list[int]) -> bool:
  """Whether the stack's parts fit on a mesh; adds an issue if they do not."""
  parts, cells = _number_of_cells(view), _cells(view)
  if not 1 <= len(mesh) <= len(_MESH_AXES) or mesh[0] != parts:
    view.issue(
      'device_mesh',
      f'its shape is {mesh}; expected {[parts]}, a device for each part, or a'
      ' second number, of devices that a batch is split over',
    )
    return False
  if len({cells.count(part) for part in range(parts)}) > 1:
    view.issue(
      'splits',
      f'{view.params.splits} are parts of different sizes; a pipeline over a'
      ' device_mesh has stages of one size',
    )
    return False
  return True


def _check_dims(view: ParamsView, emb: gpipe_parts.Embedding, layer, softmax):
  """Adds an issue where the parts do not fit together."""
  dims = layer.config.input_dims
  for name, found in (
    ('emb_tpl.token_emb.embedding_dim', emb.tokens.config.input_dims),
    ('emb_tpl.position_emb.embedding_dim', emb.positions.config.embedding_dims),
    ('softmax_tpl.input_dim', softmax.config.input_dims),
  ):
    if found != dims:
      view.issue(name, f'{found} is not what the layers have, {dims}')
  tokens, classes = emb.tokens.config.num_classes, softmax.config.num_classes
  if tokens != classes:
    view.issue(
      'softmax_tpl.num_classes',
      f'{classes} is not the vocab_size of emb_tpl.token_emb, {tokens}',
    )


def _label_smoothing(view: ParamsView) -> float | None:
  """Returns the probability that other labels take from the right one."""
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
  """Returns the number of the cell that each encoder layer is in."""
  splits, count = view.get('splits'), view.get('num_encoder_layers')
  if isinstance(splits, list | tuple):
    ends = list(splits)
    if ends[-1] != count or ends != sorted(ends):
      view.issue('splits', f'expected the ends of parts, up to {count}')
  else:
    ends = [(i + 1) * -(-count // splits) for i in range(splits)]
  return [sum(i >= end for end in ends) for i in range(count)]


def _theta(view: ParamsView) -> list[str]:
  """Returns the paths of the encoder layers in Lingvo."""
  return [f'cell_{cell}.encoder_{i}' for i, cell in enumerate(_cells(view))]
