"""Translators of Lingvo's stacks of batch-major Transformer layers."""

import dataclasses

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import pipelines, stacks
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)


@translates('lingvo.core.batch_major_attention.StackedTransformerLayers')
def stacked_transformer(view: ParamsView) -> Translated | None:
  """Returns a stack, which with `mask_self_atten` makes the causal mask itself.

  Lingvo's caller passes that mask if examples are packed.
  """
  on_one_device(view)
  view.require('funnel_pool_strides', None, [])
  view.ignore('funnel_pool_strides is not set', 'funnel_pool_begin_intacts')
  view.ignore('it only places layers on devices', 'splits')
  layers = _translated_layers(view)
  norm = None
  if view.get('final_layer_norm'):
    norm = registry.translate(
      view.child(
        'layernorm_tpl',
        input_dim=view.get('mdl_dim'),
        use_fused_layernorm=view.get('use_fused_layernorm'),
      )
    )
  else:
    view.ignore(
      'final_layer_norm is off', 'layernorm_tpl', 'use_fused_layernorm'
    )
  if None in layers or (view.get('final_layer_norm') and norm is None):
    return None
  configs = [layer.config for layer in layers]
  same = all(config == configs[0] for config in configs)
  packed = view.get('packed_input')
  config = StackedTransformer.config(
    model_dims=configs[0].input_dims,
    num_layers=len(layers),
    transformer_layer_params_tpl=configs[0] if same else configs,
    packed_input=packed,
    # As in Lingvo, paddings are not read: they have their own segment.
    fold_padding_with_segment_mask=packed,
    output_norm_tpl=norm and norm.config,
  )
  variables = VariableMap()
  for i, layer in enumerate(layers):
    variables += layer.variables.under(f'x_layers[{i}]', f'x_layers_{i}')
  if norm is not None:
    variables += norm.variables.under('final_ln', 'output_norm')
  return Translated(config, variables)


def _translated_layers(view: ParamsView) -> list[Translated | None]:
  """Translates each layer; layers with equal Params only once."""
  found, layers = {}, []
  for i in range(view.get('num_layers')):
    template = _layer_params(view, i)
    text = template.ToText()
    if text not in found:
      found[text] = registry.translate(
        view.adopt(template, 'transformer_layer_params_tpl')
      )
    one = found[text]
    layers.append(one and Translated(one.config.clone(), one.variables))
  if not layers:
    view.issue('num_layers', 'expected 1 or more')
  return layers or [None]


def _layer_params(view: ParamsView, i: int):
  """Returns the Params of layer `i`, with the fields Lingvo's stack sets."""
  num_layers, dims = view.get('num_layers'), view.get('mdl_dim')
  templates = view.get('transformer_layer_params_tpl')
  if isinstance(templates, list):
    if num_layers % len(templates):
      view.issue(
        'num_layers', f'{num_layers} is not a multiple of {len(templates)}'
      )
    copies = max(1, num_layers // len(templates))
    templates = templates[min(i // copies, len(templates) - 1)]
  layer = templates.Copy().Set(
    has_aux_atten=view.get('has_aux_atten'),
    mask_self_atten=view.get('mask_self_atten'),
    packed_input=view.get('packed_input'),
  )
  if dims:
    layer.Set(input_dim=dims, output_dim=dims)
  atten, feed_forward = layer.tr_atten_tpl, layer.tr_fflayer_tpl
  heads = view.get('num_atten_heads')
  if heads is not None and not isinstance(atten.num_heads, list):
    atten.num_heads = heads
  drop = view.get('dropout_prob')
  if drop is not None:
    atten.Set(atten_dropout_prob=drop, residual_dropout_prob=drop)
    feed_forward.Set(residual_dropout_prob=drop, relu_dropout_prob=drop)
  droppath = view.get('stochastic_depth_droppath_prob')
  if droppath is not None:
    droppath *= i / max(1, num_layers - 1)
    atten.residual_droppath_prob = droppath
    feed_forward.residual_droppath_prob = droppath
  if view.get('hidden_dim') is not None:
    feed_forward.hidden_dim = view.get('hidden_dim')
  atten.add_unnormalized_input = view.get('add_unnormalized_input')
  _add_experts(view, layer, i)
  return layer


def _add_experts(view: ParamsView, layer, i: int):
  """Replaces a layer's feed-forward by a mixture if it is in `moe_layers`."""
  if not view.get('moe_layers'):
    view.ignore(
      'moe_layers is empty',
      'moe_layer_tpl',
      'num_experts',
      'num_groups',
      'min_group_size',
    )
  if i not in view.get('moe_layers'):
    return
  own = layer.tr_fflayer_tpl
  experts = view.get('moe_layer_tpl').Copy()
  own.cls.CopyBaseParams(own, experts)
  for name in (
    'name',
    'input_dim',
    'output_dim',
    'hidden_dim',
    'activation',
    'residual_dropout_prob',
    'relu_dropout_prob',
  ):
    experts.Set(**{name: own.Get(name)})
  layer.tr_fflayer_tpl = experts.Set(
    dropout_tpl=own.residual_dropout_tpl.Copy(),
    num_groups=view.get('num_groups'),
    min_group_size=view.get('min_group_size'),
    num_experts=view.get('num_experts'),
  )


@translates('lingvo.core.batch_major_attention.RepeatedTransformerLayer')
def repeated_transformer(view: ParamsView) -> Translated | None:
  """Returns a repeated stack; a single layer becomes a stack of one."""
  on_one_device(view)
  view.ignore('attention weights are not returned', 'atten_prob_aggregation')
  times = view.get('repeat')
  body = registry.translate(view.child('body'))
  if body is None:
    return None
  block = body
  if body.config.cls is not StackedTransformer:
    block = _stack_of_one(view, body)
  config = StackedTransformerRepeated.config(block=block.config, x_times=times)
  path = 'repeat/sub'
  if view.get('per_layer_vars'):
    names = [f'body_iter_{i:05d}' for i in range(times)]
    return Translated(
      config, stacks.per_layer(view, block.variables, names, path)
    )
  return Translated(config, stacks.stacked(view, block.variables, times, path))


def _stack_of_one(view: ParamsView, layer: Translated) -> Translated:
  packed = view.params.body.packed_input
  return Translated(
    StackedTransformer.config(
      model_dims=layer.config.input_dims,
      num_layers=1,
      transformer_layer_params_tpl=layer.config,
      packed_input=packed,
      fold_padding_with_segment_mask=packed,
    ),
    VariableMap(
      dataclasses.replace(v, jax=f'x_layers_0/{v.jax}') for v in layer.variables
    ),
  )


@translates('lingvo.core.batch_major_attention.PipelinedTransformerLayers')
def pipelined_transformer(view: ParamsView) -> Translated | None:
  """Returns a pipeline, whose weights Lingvo too stacks by stage."""
  on_one_device(view)
  view.require('circular_repeat', 1)
  view.ignore('it only places stages on devices', 'shard_stages_1d')
  view.ignore('device_mesh is not set', 'pipeline_stage_mesh_dim')
  view.ignore('the result is the same', 'unroll')
  stages = view.get('num_pipeline_stages')
  number = view.get('num_pipeline_microbatches')
  size = view.get('pipeline_microbatch_size')
  if (number is None) == (size is None):
    view.issue(
      'num_pipeline_microbatches',
      'expected either this field or pipeline_microbatch_size',
    )
  at_each = view.get('final_ln_at_each_stage')
  stage = registry.translate(
    view.child('pipeline_stage', final_layer_norm=at_each)
  )
  normalizes = view.get('final_layer_norm') and not at_each
  norm = registry.translate(_final_norm(view)) if normalizes else None
  if stage is None or (normalizes and norm is None):
    return None
  translated = pipelines.of_stages(stage, stages=stages, microbatches=number)
  translated.config.set(
    pipeline_microbatch_size=size,
    output_norm_tpl=norm and norm.config,
  )
  variables = translated.variables
  if norm is not None:
    variables += norm.variables.under('final_ln', 'output_norm')
  return Translated(translated.config, variables)


def _final_norm(view: ParamsView) -> ParamsView:
  """Returns the view of the norm after all stages."""
  stage = view.get('pipeline_stage')
  return view.adopt(
    stage.layernorm_tpl,
    'pipeline_stage.layernorm_tpl',
    input_dim=stage.mdl_dim,
    use_fused_layernorm=stage.use_fused_layernorm,
  )
