"""Transformer language models whose layers are stages of a pipeline."""

from lm_tasks.model_params import networks, settings, spmd_lm
from pax_compat import layers
from pax_compat.config import Config


class TransformerLmSpmdPipelineAdafactor(spmd_lm.TransformerLmSpmdAdafactor):
  """A Transformer language model in pipeline stages, trained with Adafactor.

  The axes of the mesh are stage, replica, data and mdl. Embedding and softmax
  are outside the pipeline: their batches are split over the stages, too.

  Class attributes, beyond those of the base class:
    NUM_STAGES: stages of the pipeline, the length of the mesh's first axis.
    CIRCULAR_REPEAT: times that a microbatch passes all stages.
    NUM_MICROBATCHES, MICROBATCH_SIZE: one of them must be set.
    EMB_W_DATA_DIMS: the mesh axis, or axes, over which the embedding's model
      dims are split.
    STREAM_IO: whether the batch is streamed through the stages; see
      `PipelinedTransformer.stream_io`.
    PIPELINE_BROADCAST_INPUTS: without an effect, since XLA schedules transfers.
  """

  PACKED_INPUT = True

  NUM_STAGES = None
  CIRCULAR_REPEAT = 1
  PIPELINE_BROADCAST_INPUTS = False
  NUM_MICROBATCHES = None
  MICROBATCH_SIZE = None

  DCN_MESH_SHAPE = [1, 1, 1, 1]
  EMB_W_DATA_DIMS = 'data'
  STREAM_IO = False

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    self._check_stages()
    return super().task()

  def _network(self) -> Config:
    stack = self._stack()
    layers_per_stage = self.NUM_LAYERS // (
      self.NUM_STAGES * self.CIRCULAR_REPEAT
    )
    if self.USE_REPEATED_LAYER:
      stack = networks.repeated(stack, layers_per_stage, self.CHECKPOINT_POLICY)
    else:
      stack.num_layers = layers_per_stage
    return layers.PipelinedTransformer.config(
      pipeline_stage=stack,
      num_pipeline_stages=self.NUM_STAGES,
      circular_repeat=self.CIRCULAR_REPEAT,
      num_pipeline_microbatches=self.NUM_MICROBATCHES,
      pipeline_microbatch_size=self.MICROBATCH_SIZE,
      stream_io=self.STREAM_IO,
      pipeline_broadcast_inputs=self.PIPELINE_BROADCAST_INPUTS,
      checkpoint_policy=self.CHECKPOINT_POLICY,
    )

  def _shard(self, task: Config):
    batch = settings.set_pipeline_sharding(
      task,
      self.TRAINING_OPTIMIZED_SHARDING,
      self.ICI_MESH_SHAPE,
      self.DCN_MESH_SHAPE,
      expert_parallelism=self.USE_EXPERT_PARALLEL,
    )
    outputs = [batch, None, settings.MDL]
    weights = [self.EMB_W_DATA_DIMS, settings.MDL]
    lm = task.model.lm_tpl
    softmax, embedding = lm.softmax_tpl, lm.softmax_tpl
    if self.SEPARATE_EMBEDDING:
      embedding = lm.separate_embedding_tpl
      embedding.weight_split_dims_mapping.wt = weights
    embedding.activation_split_dims_mapping.set(
      emb_out_split_dims_mapping=outputs, out=outputs
    )
    is_gshard = issubclass(softmax.cls, layers.GShardSharedEmbeddingSoftmax)
    softmax.weight_split_dims_mapping.wt = (
      weights[::-1] if is_gshard else weights
    )
    stages = lm.stacked_transformer_tpl
    stages.weight_split_dims_mapping.stages = [settings.STAGE]
    stages.activation_split_dims_mapping.final_out = outputs

  def _check_stages(self):
    """Raises a UserError for attributes that contradict each other."""
    if self.NUM_MICROBATCHES is None and self.MICROBATCH_SIZE is None:
      self._refuse('NUM_MICROBATCHES', 'so is MICROBATCH_SIZE; set one of them')
    axes = 5 if self.USE_EXPERT_PARALLEL else 4
    for name in ('ICI_MESH_SHAPE', 'DCN_MESH_SHAPE'):
      if len(getattr(self, name) or ()) != axes:
        self._refuse(name, f'the mesh has {axes} axes; expected {axes} numbers')
    stages = self.ICI_MESH_SHAPE[0] * self.DCN_MESH_SHAPE[0]
    if self.NUM_STAGES != stages:
      self._refuse(
        'NUM_STAGES',
        f'ICI_MESH_SHAPE {self.ICI_MESH_SHAPE} and DCN_MESH_SHAPE'
        f' {self.DCN_MESH_SHAPE} are for {stages} stages',
      )
    if self.NUM_LAYERS % (stages * self.CIRCULAR_REPEAT):
      self._refuse(
        'NUM_LAYERS',
        f'there are {stages} stages and CIRCULAR_REPEAT is'
        f' {self.CIRCULAR_REPEAT}; expected a multiple of their product',
      )
