"""Stacks of layers in Lingvo as pipelines here.

Shapes: S stages.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import base_fields
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import stacks
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import (
  AlreadyStacked,
  Chain,
  Each,
  Same,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat.layers.pipelines.pipeline import LayerwiseShardablePipelined
from pax_compat.layers.transformers.pipelined_transformers import (
  PipelinedTransformer,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)

# The mesh axis that the stages of GPipe are split over.
STAGE_AXIS = 'stage'


@translates('lingvo.core.gshard_layers.LayerwiseShardablePipelinedLayer')
def layerwise_shardable(view: ParamsView) -> Translated | None:
  """`LayerwiseShardablePipelinedLayer` around the layer of a single stage."""
  view.get('params_init')  # For children, which take it over.
  on_one_device(view)
  view.require('stage_parallel_body', None)
  view.require('circular_repeat', 1)
  view.require('aux_loss_microbatch_accumulation', 'mean')
  view.ignore('it only says where stages are computed', 'shard_stages_1d')
  view.ignore('there is no device_mesh', 'pipeline_stage_mesh_dim')
  view.ignore('the result is the same', 'unroll')
  if not view.get('single_stage_body'):
    view.issue('single_stage_body', 'expected the layer of a stage')
    return None
  stages = view.get('num_stages')
  body = registry.translate(view.child('single_stage_body'))
  fields = dict(
    num_microbatches=view.get('num_microbatches'),
    microbatch_size=view.get('microbatch_size'),
    **base_fields(view),
  )
  if body is None:
    return None
  config = LayerwiseShardablePipelined.config(
    num_stages=stages, single_stage_body=body.config, **fields
  )
  if view.get('per_stage_vars'):
    names = [f'body_iter_{i:05d}' for i in range(stages)]
    return Translated(
      config, stacks.per_layer(view, body.variables, names, 'body')
    )
  stacks.check_first_values(view, 'single_stage_body')
  return Translated(config, _of_stages(body.variables).under('body', 'body'))


def of_layers(
  view: ParamsView,
  layer: Translated,
  names: Sequence[str],
  *,
  stages: int,
  microbatches: int,
) -> Translated:
  """Returns the pipeline of layers that Lingvo has one by one.

  Args:
    view: of the stack in Lingvo.
    layer: each of its layers.
    names: of the layers in Lingvo, a multiple of S.
    stages: S; the first stage has the first layers.
    microbatches: into how many parts a batch is cut.
  """
  count = len(names) // stages
  stage = StackedTransformer.config(
    model_dims=layer.config.input_dims,
    num_layers=count,
    transformer_layer_params_tpl=layer.config,
  )
  config = PipelinedTransformer.config(
    pipeline_stage=stage,
    num_pipeline_stages=stages,
    num_pipeline_microbatches=microbatches,
  )
  config.weight_split_dims_mapping.stages = [STAGE_AXIS]
  variables = VariableMap()
  for i in range(count):
    variables += stacks.per_layer(
      view, layer.variables, names[i::count], f'pipeline/body/x_layers_{i}'
    )
  return Translated(config, variables)


def of_stages(
  stage: Translated, *, stages: int, microbatches: int
) -> Translated:
  """Returns the pipeline of stages whose weights Lingvo stacks, too.

  Args:
    stage: a `StackedTransformer` or `StackedTransformerRepeated`, with
      variables by their paths below a stage in Lingvo.
    stages: S.
    microbatches: into how many parts a batch is cut.

  Returns:
    The pipeline, with variables by their paths below Lingvo's stack, in which
    they have a first dimension of S.
  """
  config = PipelinedTransformer.config(
    pipeline_stage=stage.config,
    num_pipeline_stages=stages,
    num_pipeline_microbatches=microbatches,
  )
  variables = _of_stages(stage.variables)
  return Translated(config, variables.under('pipeline.body', 'pipeline/body'))


def _of_stages(variables: VariableMap) -> VariableMap:
  """Returns the variables of a stage with a first dimension of S in both."""
  return VariableMap(
    dataclasses.replace(v, transform=_of_each_stage(v.transform))
    for v in variables
  )


def _of_each_stage(transform: Any) -> Any:
  """Returns the transform of a stage's variable, of all stages."""
  if type(transform) is Same:
    return AlreadyStacked()
  return Chain((Each(transform), AlreadyStacked()))
