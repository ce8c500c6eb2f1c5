"""Translators of Lingvo's pipelines, and pipelines made of stacks.

Shapes: S stages.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.transformers import stacks
from adaptors.translate.transformers.batch_major_attention import on_one_device
from adaptors.translate.variables import (
  AlreadyStacked,
  Chain,
  Identity,
  Map,
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

# The mesh axis over which the stages of GPipe are sharded.
STAGE_AXIS = 'stage'


@translates('lingvo.core.gshard_layers.LayerwiseShardablePipelinedLayer')
def layerwise_shardable(view: ParamsView) -> Translated | None:
  """Returns a pipeline of a single stage's layer."""
  on_one_device(view)
  view.require('stage_parallel_body', None)
  view.require('circular_repeat', 1)
  view.require('aux_loss_microbatch_accumulation', 'mean')
  view.ignore('it only places stages on devices', 'shard_stages_1d')
  view.ignore('device_mesh is not set', 'pipeline_stage_mesh_dim')
  view.ignore('the result is the same', 'unroll')
  if not view.get('single_stage_body'):
    view.issue('single_stage_body', 'expected the layer of a stage')
    return None
  stages = view.get('num_stages')
  body = registry.translate(view.child('single_stage_body'))
  fields = dict(
    num_microbatches=view.get('num_microbatches'),
    microbatch_size=view.get('microbatch_size'),
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
  stacks.check_initializers(view, 'single_stage_body')
  return Translated(config, _of_stages(body.variables).under('body', 'body'))


def of_layers(
  view: ParamsView,
  layer: Translated,
  names: Sequence[str],
  *,
  stages: int,
  microbatches: int,
) -> Translated:
  """Returns the pipeline of layers that are separate in Lingvo.

  Args:
    view: of the stack in Lingvo.
    layer: the translation of one layer.
    names: of the layers in Lingvo, a multiple of S.
    stages: S; the first stage has the first layers.
    microbatches: the number of micro-batches of a batch.
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
  """Returns the pipeline of stages whose weights are stacked in Lingvo too.

  Args:
    stage: a `StackedTransformer` or `StackedTransformerRepeated`, with
      variables by their paths below a stage in Lingvo.
    stages: S.
    microbatches: the number of micro-batches of a batch.

  Returns:
    The pipeline, with variables by their paths below Lingvo's stack, where
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
  """Returns a stage's variables with a first dimension of S in both."""
  return VariableMap(
    dataclasses.replace(v, transform=_of_each_stage(v.transform))
    for v in variables
  )


def _of_each_stage(transform: Any) -> Any:
  """Returns the transform of all stages, given that of one."""
  if type(transform) is Identity:
    return AlreadyStacked()
  return Chain((Map(transform), AlreadyStacked()))
