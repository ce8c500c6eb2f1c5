"""A Transformer whose layers work at the same time, as stages of a pipeline.

Shapes: B batch, T time, L steps of decoding, D model dims.
"""

import copy
from typing import Any

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.pipelines import pipeline
from pax_compat.layers.template_fields import agreed, refuse_mappings
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)


class PipelinedTransformer(base_layer.BaseLayer):
  """A stack of Transformer layers in stages; see `pipeline`.

  It takes the place of a `StackedTransformer` in a model.

  Attributes:
    pipeline_stage: the layers of a stage: a `StackedTransformer` or a
      `StackedTransformerRepeated`.
    num_pipeline_stages: how many stages.
    num_pipeline_microbatches: into how many parts a batch is cut.
    pipeline_microbatch_size: how many examples a part has, instead.
    circular_repeat: how often each part goes through the stages, each of which
      has other layers for each time.
    checkpoint_policy: which values of a stage's work are kept for the backward
      pass; an `AutodiffCheckpointType` or its name. Its input is always kept.
    unpack_summaries: whether each stage has summaries of its own.
    model_dims: D; this and the following ones are fields of the stage, and None
      leaves them to it.
    mask_self_attention: whether positions are hidden from earlier ones.
    use_cross_attention: whether the layers attend to another sequence.
    packed_input: whether examples are packed, so that segment ids are needed.
    output_norm_tpl: a normalisation of what the last stage returns, or None.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """How the stacked weights are split over the mesh.

    Attributes:
      stages: one entry: the mesh axis (or axes) that the dimension of the
        stages is split over, or None; the others are split as the stage says.
    """

    stages: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """How what the layer computes is split over the mesh.

    Attributes:
      final_out: of the output.
    """

    final_out: SplitDimsMapping = None

  pipeline_stage: Config = sub_config_field(StackedTransformer)
  num_pipeline_stages: int = REQUIRED
  num_pipeline_microbatches: int | None = None
  pipeline_microbatch_size: int | None = None
  circular_repeat: int = 1
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING
  unpack_summaries: bool = True
  model_dims: int | None = None
  mask_self_attention: bool | None = None
  use_cross_attention: bool | None = None
  packed_input: bool | None = None
  output_norm_tpl: Config | None = None

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
      # A shallow copy: the templates inside are the user's own ones.
      single_stage_body=copy.copy(self.pipeline_stage).set(
        **self._stage_fields()
      ),
      num_microbatches=self.num_pipeline_microbatches,
      microbatch_size=self.pipeline_microbatch_size,
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
    """Returns what this layer says of its stages."""
    if getattr(self.pipeline_stage, 'residual_droppath_prob', 0.0):
      raise errors.UserError(
        'PipelinedTransformer.pipeline_stage.residual_droppath_prob rises from'
        ' layer to layer, but stages are all the same; expected it in'
        ' pipeline_stage.transformer_layer_params_tpl, as one rate for all'
      )
    return agreed(
      'PipelinedTransformer.pipeline_stage',
      self.pipeline_stage,
      model_dims=self.model_dims,
      mask_self_attention=self.mask_self_attention,
      use_cross_attention=self.use_cross_attention,
      packed_input=self.packed_input,
    )

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    **given: jax.Array | None,
  ) -> jax.Array:
    """Applies all stages; see `StackedTransformer.__call__`.

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      **given: what else a stage takes.

    Returns:
      [B, T, D].
    """
    outputs = self.pipeline(inputs, paddings, **given)
    return self._output(outputs)

  def _output(self, outputs: jax.Array) -> jax.Array:
    """Returns the output [B, T, D], given that of the last stage."""
    if self.output_norm_tpl is not None:
      outputs = self.output_norm(outputs)
    return self.shard(outputs, self.activation_split_dims_mapping.final_out)

  def init_states(self, batch_size: int, max_length: int, **given):
    """Makes room to decode; see `Transformer.init_states`."""
    self.pipeline.init_states(batch_size, max_length, **given)

  def extend_step(self, inputs: jax.Array, **given) -> jax.Array:
    """Applies all stages to new positions [B, L, D], one after the other."""
    return self._output(self.pipeline.extend_step(inputs, **given))
