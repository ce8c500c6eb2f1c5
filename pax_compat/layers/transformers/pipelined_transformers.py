"""A stack of Transformer layers as the stages of a pipeline.

Shapes: B batch, T time, L new positions of a decoding step, D model dims.
"""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.attentions.attention_masks import Mask, takes_structure
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.pipelines import pipeline
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  WrappedStack,
)


class PipelinedTransformer(WrappedStack):
  """A `StackedTransformer` in pipeline stages; see `pipeline`.

  Attributes:
    pipeline_stage: the layers of a stage: a `StackedTransformer` or a
      `StackedTransformerRepeated`.
    num_pipeline_stages: number of stages.
    num_pipeline_microbatches: number of microbatches of a batch.
    pipeline_microbatch_size: examples per microbatch, instead.
    circular_repeat: number of times that a microbatch passes all stages, each
      time with other layers.
    stream_io: whether the batch is spread over the devices of all stages; see
      `LayerwiseShardablePipelined`.
    checkpoint_policy: which values of a stage are saved for the backward pass;
      an `AutodiffCheckpointType` or its name. Its input is always saved.
    unpack_summaries: whether each layer has separate summaries.
    model_dims: D; this and the following fields are set on the stage, unless
      None.
    mask_self_attention: whether self-attention is causal.
    use_cross_attention: whether the layers attend to another sequence.
    packed_input: whether examples are packed, so that segment ids are required.
    output_norm_tpl: a normalisation of the last stage's output, or None.
    ngrammer_tpls: see `StackedTransformer`; set on the stage, unless None.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'ngrammer_tpls',
  )

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the stacked weights.

    Attributes:
      stages: one entry: the mesh axis (or axes) over which the dimension of the
        stages is sharded, or None. The stage shards the other dimensions.
    """

    stages: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations.

    Attributes:
      final_out: of the output.
    """

    final_out: SplitDimsMapping = None

  pipeline_stage: Config = sub_config_field(StackedTransformer)
  num_pipeline_stages: int = REQUIRED
  num_pipeline_microbatches: int | None = None
  pipeline_microbatch_size: int | None = None
  circular_repeat: int = 1
  stream_io: bool = False
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING
  unpack_summaries: bool = True
  model_dims: int | None = None
  mask_self_attention: bool | None = None
  use_cross_attention: bool | None = None
  packed_input: bool | None = None
  output_norm_tpl: Config | None = None
  ngrammer_tpls: Sequence[Config | None] | None = None

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    if (self.num_pipeline_microbatches, self.pipeline_microbatch_size) == (
      None,
      None,
    ):
      raise errors.UserError(
        'PipelinedTransformer.num_pipeline_microbatches and'
        ' pipeline_microbatch_size are not set; expected one of them'
      )
    self.create_child('pipeline', self._pipeline())
    if self.output_norm_tpl is not None:
      tpl = self.output_norm_tpl
      where = 'PipelinedTransformer.output_norm_tpl'
      self.create_child(
        'output_norm', tpl, **agreed(where, tpl, dim=self.model_dims)
      )

  def _pipeline(self) -> Config:
    """Returns the config of the pipeline."""
    fields: dict[str, Any] = dict(
      num_stages=self.num_pipeline_stages,
      # A shallow copy: templates inside keep their identity.
      single_stage_body=copy.copy(self.pipeline_stage).set(
        **self._stage_fields()
      ),
      num_microbatches=self.num_pipeline_microbatches,
      microbatch_size=self.pipeline_microbatch_size,
      stream_io=self.stream_io,
      checkpoint_policy=self.checkpoint_policy,
      unpack_summaries=self.unpack_summaries,
    )
    cls = pipeline.LayerwiseShardablePipelined
    if self.circular_repeat != 1:
      cls = pipeline.CircularLayerwiseShardablePipelined
      fields['circular_repeat'] = self.circular_repeat
    config = cls.config(**fields)
    stages = self.weight_split_dims_mapping.stages
    config.weight_split_dims_mapping.stages = stages
    return config

  def _stage_fields(self) -> dict[str, Any]:
    """Returns the fields that this layer sets on its stages."""
    if getattr(self.pipeline_stage, 'residual_droppath_prob', 0.0):
      raise errors.UserError(
        'PipelinedTransformer.pipeline_stage.residual_droppath_prob differs'
        ' between layers, but stages are identical; expected it in'
        ' pipeline_stage.transformer_layer_params_tpl, as one rate for all'
      )
    return agreed(
      'PipelinedTransformer.pipeline_stage',
      self.pipeline_stage,
      model_dims=self.model_dims,
      mask_self_attention=self.mask_self_attention,
      use_cross_attention=self.use_cross_attention,
      packed_input=self.packed_input,
      ngrammer_tpls=self.ngrammer_tpls,
    )

  @takes_structure
  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_mask: Mask = None,
    cross_inputs: jax.Array | None = None,
    cross_paddings: jax.Array | None = None,
    cross_segment_mask: Mask = None,
    segment_pos: jax.Array | None = None,
    **segments: jax.Array | None,
  ) -> jax.Array:
    """Applies all stages; see `StackedTransformer.__call__`."""
    outputs = self.pipeline(
      inputs,
      paddings,
      segment_mask=segment_mask,
      cross_inputs=cross_inputs,
      cross_paddings=cross_paddings,
      cross_segment_mask=cross_segment_mask,
      segment_pos=segment_pos,
      **segments,
    )
    return self._output(outputs)

  def _output(self, outputs: jax.Array) -> jax.Array:
    """Normalises and shards the output [B, T, D]."""
    if self.output_norm_tpl is not None:
      outputs = self.output_norm(outputs)
    return self.shard(outputs, self.activation_split_dims_mapping.final_out)

  @property
  def _wrapping(self) -> base_layer.BaseLayer:
    return self.pipeline
