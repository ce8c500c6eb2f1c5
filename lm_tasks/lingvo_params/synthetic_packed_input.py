"""Lingvo's dense language models of 9 billion to a trillion parameters.

They measure the speed of training on TPU v3, with a synthetic input that has
the fields of packed text. Names and Params equal Lingvo's own
`lm.synthetic_packed_input.*`; once installed, this module is
`lingvo.tasks.lm.params.synthetic_packed_input`:

    python -m pax_compat.main --exp=lm.synthetic_packed_input.DenseLm8B2x2 \
      --job_log_dir=/data/run1

Hardware: one device for each entry of the device mesh, 8 for `DenseLm8B2x2`.
Time: `--compile_only` prints a bound of the step; not measured here.
Metric: `steps_per_second`; all ids are 1, so the loss means nothing.

Weights and activations are sharded in two dimensions, over the rows (axis 0)
and columns (axis 1) of a device mesh. A name ends with the topology: 16x16
chips are 512 cores. To shrink one of them for any machine, see
`adaptors.params.shrinking`.
"""

import numpy as np
from lingvo import compat as tf
from lingvo import model_registry
from lingvo.core import (
  base_input_generator,
  base_model_params,
  gshard_builder,
  gshard_utils,
  optimizer,
  py_utils,
)

from lm_tasks.lingvo_params import gshard_settings


class SyntheticTrain(base_input_generator.BaseInputGenerator):
  """Batches of packed text in which each id, label and position is 1.

  Each row is one segment, so every token attends to all earlier ones. Batches
  are `tgt` of `ids`, `labels`, `segment_ids` and `segment_pos`, int32,
  [batch_size, seq_len].
  """

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('seq_len', 0, 'Tokens per row.')
    return p

  def _InputBatch(self):
    ones = tf.ones([self.params.batch_size, self.params.seq_len], tf.int32)
    fields = ('ids', 'labels', 'segment_ids', 'segment_pos')
    return py_utils.NestedMap(
      tgt=py_utils.NestedMap({field: tf.identity(ones) for field in fields})
    )


class _AdamOfShardedSlots(tf.train.AdamOptimizer):
  """Adam whose slots have the sharding of their variable."""

  def _zeros_slot(self, var, slot_name, op_name):
    slot = super()._zeros_slot(var, slot_name, op_name)
    try:
      sharding = gshard_utils.GetVarSharding(var)
    except (AttributeError, ValueError):
      # Variables of eager mode, and some others, have no sharding.
      return slot
    if not sharding.is_replicated:
      sharding.ApplyToVariable(slot)
    return slot


class _MeanOfGradients(optimizer.GradientAggregationOptimizer):
  """Applies the mean gradient of several steps, also in eager mode."""

  def _create_slots(self, var_list):
    super()._create_slots([])  # Creates the step counter.
    for var in var_list:
      self._opt._zeros_slot(var, 'grad_accum', 'GradientAccumulator')


class ShardedAdam(optimizer.Adam):
  """Adam for sharded variables, with optional gradient accumulation.

  With `num_micro_batches` of n, every n-th step applies the mean gradient of n
  steps; other steps do not change the weights.
  """

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('num_micro_batches', 1, 'Steps whose gradients are accumulated.')
    return p

  def GetOptimizer(self, lr):
    p = self.params
    adam = _AdamOfShardedSlots(
      lr, beta1=p.beta1, beta2=p.beta2, epsilon=p.epsilon, name=p.name
    )
    if p.num_micro_batches == 1:
      return adam
    # Gradients are summed over replicas, which exist on TPUs only.
    return _MeanOfGradients(
      adam, p.num_micro_batches, apply_crs_to_grad=py_utils.use_tpu()
    )


class DenseLmTemplate(base_model_params.SingleTaskModelParams):
  """A dense decoder, configured by class attributes."""

  # The batch size divided by the number of devices.
  BATCH_DIM_PER_DEVICE = 0.125
  NUM_DEVICES_PER_SPLIT = 128
  SEQUENCE_LENGTH = 1024
  DEVICE_MESH_SHAPE = (8, 16)
  DEVICE_MESH = gshard_settings.mesh_of_torus(8, 16)

  MODEL_DIM = 8192
  HIDDEN_DIM = 65536
  NUM_HEADS = 128
  ATTENTION_KEY_VALUE_DIM = 128
  NUM_TRANSFORMER_LAYERS = 64
  VOCAB_SIZE = 32000
  LABEL_SMOOTHING = 0.0
  ATTEN_LOGIT_CAP = 0
  GATED_GELU = True
  POSITIONAL_EMBEDDING = False
  USE_REPEAT_LAYER = False
  DEBUG = False

  TRAIN_STEPS_PER_LOOP = 100

  def Train(self):
    """Returns the synthetic input."""
    return SyntheticTrain.Params().Set(
      batch_size=self._BatchSize(), seq_len=self.SEQUENCE_LENGTH
    )

  def Task(self):
    """Returns the decoder and its training settings."""
    p = gshard_builder.UniTransformer.Params().Set(
      name='transformer',
      dtype=tf.float32,
      fprop_dtype=tf.bfloat16,
      builder=self._Builder(),
      vocab_size=self.VOCAB_SIZE,
      num_transformer_layers=self.NUM_TRANSFORMER_LAYERS,
      batch_size=self._BatchSize(),
      sequence_length=self.SEQUENCE_LENGTH,
      max_length=self.SEQUENCE_LENGTH,
      positional_embedding=self.POSITIONAL_EMBEDDING,
      gated_gelu=self.GATED_GELU,
      use_repeat_layer=self.USE_REPEAT_LAYER,
      label_smoothing=self.LABEL_SMOOTHING,
      aux_loss_coef=0.0,
      debug=self.DEBUG,
    )
    gshard_settings.train_with_adafactor(
      p, warmup_steps=10_000, max_steps=2_000_000
    )
    return p

  def ProgramSchedule(self):
    """Returns a schedule without evaluation."""
    return gshard_settings.program_schedule(
      steps_per_loop=self.TRAIN_STEPS_PER_LOOP, loops_per_eval=5
    )

  def _BatchSize(self):
    return int(self.BATCH_DIM_PER_DEVICE * self.NUM_DEVICES_PER_SPLIT)

  def _Builder(self):
    """Returns the layers' sizes, and their sharding over the mesh."""
    return gshard_builder.DenseBuilder.Params().Set(
      dtype=tf.float32,
      fprop_dtype=tf.bfloat16,
      model_dim=self.MODEL_DIM,
      ff_dim=self.HIDDEN_DIM,
      attention_num_heads=self.NUM_HEADS,
      attention_key_value_dim=self.ATTENTION_KEY_VALUE_DIM,
      attention_combine_dims=True,
      attention_extra_logit=0.0,
      attention_logits_dtype=tf.float32,
      atten_logit_cap=self.ATTEN_LOGIT_CAP,
      relative_attention_type='bias',
      relative_attention_use_universal_1d_position=True,
      device_mesh_shape=list(self.DEVICE_MESH_SHAPE),
      device_mesh=np.array(self.DEVICE_MESH),
      model_dim_reshape_segments=self.DEVICE_MESH_SHAPE[1],
      emb_w_split=[-1, 1],
      emb_out_split=[0, -1, 1],
      blm_split=[0, -1, 1],
      logits_split=[0, -1, 1],
    )


@model_registry.RegisterSingleTaskModel
class DenseLm8B2x2(DenseLmTemplate):
  """A gated decoder of 9 billion parameters, sharded over eight cores."""

  NUM_TRANSFORMER_LAYERS = 4
  DEVICE_MESH_SHAPE = (1, 8)
  DEVICE_MESH = gshard_settings.mesh_by_rows(1, 8)


@model_registry.RegisterSingleTaskModel
class DenseLm8B2x2Decode(DenseLm8B2x2):
  """DenseLm8B2x2 with relative positions that decoding can use."""

  def _Builder(self):
    return _ForDecoding(super()._Builder())


@model_registry.RegisterSingleTaskModel
class DenseLm128B8x8(DenseLmTemplate):
  """A gated decoder of 138 billion parameters on 128 cores."""


@model_registry.RegisterSingleTaskModel
class DenseLm128B16x16(DenseLmTemplate):
  """DenseLm128B8x8 on 512 cores, with batches of 128."""

  BATCH_DIM_PER_DEVICE = 0.25
  NUM_DEVICES_PER_SPLIT = 512
  DEVICE_MESH_SHAPE = (16, 32)
  DEVICE_MESH = gshard_settings.mesh_of_torus(16, 32)


@model_registry.RegisterSingleTaskModel
class DenseLm128B32x32(DenseLmTemplate):
  """DenseLm128B8x8 on 2048 cores, with batches of 512."""

  BATCH_DIM_PER_DEVICE = 0.25
  NUM_DEVICES_PER_SPLIT = 2048
  DEVICE_MESH_SHAPE = (32, 64)
  DEVICE_MESH = gshard_settings.mesh_by_rows(32, 64)
  TRAIN_STEPS_PER_LOOP = 20


@model_registry.RegisterSingleTaskModel
class DenseLm1T16x16(DenseLm128B16x16):
  """A gated decoder of 1.1 trillion parameters on 512 cores."""

  BATCH_DIM_PER_DEVICE = 1 / 32
  SEQUENCE_LENGTH = 512
  MODEL_DIM = 16384
  HIDDEN_DIM = 131072
  NUM_HEADS = 256
  NUM_TRANSFORMER_LAYERS = 128


@model_registry.RegisterSingleTaskModel
class DenseLm175B32x32(DenseLmTemplate):
  """A decoder of 174 billion parameters on 2048 cores, batches of 2M tokens."""

  BATCH_DIM_PER_DEVICE = 0.5
  NUM_DEVICES_PER_SPLIT = 2048
  SEQUENCE_LENGTH = 2048
  DEVICE_MESH_SHAPE = (64, 32)
  DEVICE_MESH = gshard_settings.mesh_by_columns(64, 32)

  MODEL_DIM = 12288
  HIDDEN_DIM = 49152
  NUM_HEADS = 96
  NUM_TRANSFORMER_LAYERS = 96
  ATTEN_LOGIT_CAP = 50
  GATED_GELU = False
  POSITIONAL_EMBEDDING = True
  USE_REPEAT_LAYER = True


@model_registry.RegisterSingleTaskModel
class DenseLm175B32x32DP(DenseLm175B32x32):
  """DenseLm175B32x32 on two replicas of 1024 cores."""

  NUM_DEVICES_PER_SPLIT = 1024
  DEVICE_MESH_SHAPE = (64, 16)
  DEVICE_MESH = gshard_settings.mesh_of_torus(16, 64).T
  TRAIN_STEPS_PER_LOOP = 20


@model_registry.RegisterSingleTaskModel
class DenseLm175B1K(DenseLm175B32x32):
  """DenseLm175B32x32 on 1024 cores, with the same batch size."""

  BATCH_DIM_PER_DEVICE = 1
  NUM_DEVICES_PER_SPLIT = 1024
  DEVICE_MESH_SHAPE = (64, 16)
  DEVICE_MESH = gshard_settings.mesh_by_rows(64, 16)


@model_registry.RegisterSingleTaskModel
class DenseLM13B32x32(DenseLm175B32x32):
  """A decoder of 13 billion parameters on 2048 cores, batches of 2M tokens."""

  MODEL_DIM = 5120
  HIDDEN_DIM = 20480
  NUM_HEADS = 40
  NUM_TRANSFORMER_LAYERS = 40


@model_registry.RegisterSingleTaskModel
class DenseLm175B8x8Decode2D(DenseLm175B32x32):
  """DenseLm175B32x32 for decoding on 128 cores: batches are not sharded."""

  BATCH_DIM_PER_DEVICE = 0.125
  NUM_DEVICES_PER_SPLIT = 128
  DEVICE_MESH_SHAPE = (8, 16)
  DEVICE_MESH = gshard_settings.mesh_of_torus(8, 16)

  def _Builder(self):
    # 96 heads cannot be sharded over 128 cores: model and hidden dims are.
    return _ForDecoding(super()._Builder()).Set(
      model_dim_reshape_segments=self.DEVICE_MESH_SHAPE[0],
      emb_w_split=[1, 0],
      emb_out_split=[-1, -1, 0],
      blm_split=[-1, -1, 0],
      blh_split=[-1, -1, 1],
      logits_split=[-1, -1, 1],
    )


@model_registry.RegisterSingleTaskModel
class DenseLm12kWide41BAdam16x16(DenseLm128B16x16):
  """A wide decoder of 44 billion parameters on 512 cores, with Adam."""

  BATCH_DIM_PER_DEVICE = 0.5
  SEQUENCE_LENGTH = 2048
  MODEL_DIM = 12288
  HIDDEN_DIM = 49152
  NUM_HEADS = 96
  NUM_TRANSFORMER_LAYERS = 24
  GATED_GELU = False
  POSITIONAL_EMBEDDING = True
  # Steps whose gradients are accumulated.
  NUM_MICRO_BATCHES = 1

  def Task(self):
    """Returns the decoder, trained with Adam instead of Adafactor."""
    p = super().Task()
    p.train.optimizer = ShardedAdam.Params().Set(
      num_micro_batches=self.NUM_MICRO_BATCHES
    )
    return p


@model_registry.RegisterSingleTaskModel
class DenseLm12kWide41BAdam8x8(DenseLm12kWide41BAdam16x16):
  """DenseLm12kWide41BAdam16x16 on 128 cores: four batches of 64 per step."""

  NUM_MICRO_BATCHES = 4
  NUM_DEVICES_PER_SPLIT = 128
  DEVICE_MESH_SHAPE = (8, 16)
  DEVICE_MESH = gshard_settings.mesh_of_torus(8, 16)


@model_registry.RegisterSingleTaskModel
class DenseLm12kWide162BAdam16x16(DenseLm12kWide41BAdam16x16):
  """A wide decoder of 174 billion parameters on 512 cores, with Adam."""

  BATCH_DIM_PER_DEVICE = 0.125
  NUM_TRANSFORMER_LAYERS = 96


@model_registry.RegisterSingleTaskModel
class DenseLm12kWide162BAdamBS25616x16(DenseLm12kWide162BAdam16x16):
  """DenseLm12kWide162BAdam16x16 with four batches of 64 per step."""

  NUM_MICRO_BATCHES = 4


@model_registry.RegisterSingleTaskModel
class DenseLm12kWide162BAdam32x32(DenseLm12kWide162BAdam16x16):
  """DenseLm12kWide162BAdam16x16 on 2048 cores, with batches of 256."""

  NUM_DEVICES_PER_SPLIT = 2048
  # 96 heads can be sharded over 32 columns, not over 64.
  DEVICE_MESH_SHAPE = (64, 32)
  DEVICE_MESH = gshard_settings.mesh_by_columns(64, 32)
  TRAIN_STEPS_PER_LOOP = 20


def _ForDecoding(builder):
  """Allows arbitrary relative positions, for decoding token by token."""
  return builder.Set(relative_attention_use_universal_1d_position=False)
