"""Translators of the parts of `lingvo.core.batch_major_attention.Builder`."""

import functools

from adaptors.equivalents import lingvo_layers
from adaptors.translate.builder.builder_parts import translates_part
from adaptors.translate.functions import translates_fn
from adaptors.translate.registry import Translated
from adaptors.translate.tensorflow_functions import gelu
from adaptors.translate.transformers.batch_major_attention import (
  multi_headed_attention,
)
from adaptors.translate.view import ParamsView
from pax_compat.layers import stochastics
from pax_compat.layers.graph import arguments
from pax_compat.layers.paddings import apply_paddings

_MODULE = 'lingvo.core.batch_major_attention'
_BUILDER = f'{_MODULE}.Builder'


@translates_part(f'{_MODULE}.MultiHeadedAttention')
def attention(view: ParamsView) -> Translated | None:
  """Returns an attention without its attention weights."""
  if view.get('rope_tpl') is None and not view.get('enable_shaped_attention'):
    # The graph itself selects the queries.
    view.params.Set(query_stride=1, query_first_n=None)
  translated = multi_headed_attention(view)
  if translated is None:
    return None
  translated.config.set(**view.base_fields())
  return Translated(
    lingvo_layers.MultiHeadedAttention.config(
      atten_tpl=translated.config, packed_input=view.get('packed_input')
    ),
    translated.variables.under('', 'atten'),
  )


@translates_part(f'{_MODULE}.ResidualAddLayer')
def residual_add(view: ParamsView) -> Translated:
  view.require('apply_residual', True)
  return Translated(
    stochastics.StochasticResidual.config(
      residual_weight=view.get('residual_weight')
    )
  )


@translates_part(f'{_MODULE}.PaddingLayer')
def padding(view: ParamsView) -> Translated:
  """Returns a layer that sets padded positions to zero."""
  return Translated(arguments.Apply.config(fn=apply_paddings))


@translates_part(f'{_MODULE}.StrideLayer')
def stride(view: ParamsView) -> Translated:
  """Returns a slice of every `stride`th position; 0 means the first one."""
  every, first_n = view.get('stride'), view.get('first_n')
  if every == 0:
    every, first_n = 1, 1
  key = [(None,)] * view.get('axis') + [(None, first_n, every)]
  return Translated(arguments.Slice.config(key=key))


@translates_part(f'{_MODULE}.MeshSplitLayer')
def mesh_split(view: ParamsView) -> Translated:
  """Returns an identity; device meshes are not translated."""
  view.require('device_mesh', None)
  view.ignore('device_mesh is not set', 'tensor_split_dims_mapping')
  return Translated(arguments.Select.config())


@translates_fn(f'{_BUILDER}.GatedFeedforward.<locals>.GatedFn')
def gated(x, y, *, activation_fn):
  return activation_fn(x) * y


translates_fn(f'{_BUILDER}.GatedGeluFeedforward.<locals>.<lambda>')(
  functools.partial(gelu, approximate=True)
)
