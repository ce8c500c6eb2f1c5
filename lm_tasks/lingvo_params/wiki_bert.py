"""Lingvo's BERT encoders of 2 billion to a trillion parameters.

They predict masked words of MLPerf's Wikipedia text (`gs://mlperf_v1_1/bert`,
records of token ids). Names and Params equal Lingvo's own `lm.wiki_bert.*`;
once installed, this module is `lingvo.tasks.lm.params.wiki_bert`:

    python -m pax_compat.main --exp=lm.wiki_bert.MLPerfTrainBertDense2B \
      --job_log_dir=/data/run1

Hardware: one device for each entry of the device mesh; `--check` prints it.
Time: `--compile_only` prints a bound of the step; not measured here.
Metric: `log_pplx` of the masked words; not measured here, as the records have
to be downloaded.

Weights and activations are sharded in two dimensions, over the rows (axis 0)
and columns (axis 1) of a device mesh. To shrink one of them for any machine,
see `adaptors.params.shrinking`.
"""

import numpy as np
from lingvo import compat as tf
from lingvo import model_registry
from lingvo.core import base_model_params, gshard_builder
from lingvo.tasks.lm import input_generator

from lm_tasks.lingvo_params import gshard_settings

# The id of `[MASK]` in the vocabulary of the records.
_MASK = 103


class BertTemplate(base_model_params.SingleTaskModelParams):
  """A gated encoder, configured by class attributes."""

  BATCH_SIZE = 1024
  SEQUENCE_LENGTH = 512
  DEVICE_MESH_SHAPE = (64, 16)
  DEVICE_MESH = gshard_settings.mesh_by_rows(64, 16)
  # The model dim is reshaped to these and the rest; the first is sharded.
  MODEL_DIM_RESHAPE_SEGMENTS = (16, 4)

  MODEL_DIM = 16384
  HIDDEN_DIM = 131072
  NUM_HEADS = 256
  ATTENTION_KEY_VALUE_DIM = 128
  NUM_TRANSFORMER_LAYERS = 128
  VOCAB_SIZE = 32000
  DROPOUT_RATE = 0.0
  ATTENTION_DROPOUT_RATE = 0.0
  LABEL_SMOOTHING = 0.0
  LOSS_DENOMINATOR = 0
  ATTEN_LOGIT_CAP = 0
  GATED_FFN_ACT = 'silu'
  POSITIONAL_EMBEDDING = False
  USE_REPEAT_LAYER = True

  BETA1 = 0
  WARMUP_STEPS = 10_000

  def Task(self):
    """Returns the encoder and its training settings."""
    p = gshard_builder.BertTransformer.Params().Set(
      name='transformer',
      dtype=tf.float32,
      fprop_dtype=tf.bfloat16,
      builder=self._Builder(),
      vocab_size=self.VOCAB_SIZE,
      num_transformer_layers=self.NUM_TRANSFORMER_LAYERS,
      batch_size=self.BATCH_SIZE,
      sequence_length=self.SEQUENCE_LENGTH,
      max_length=self.SEQUENCE_LENGTH,
      positional_embedding=self.POSITIONAL_EMBEDDING,
      gated_ffn_activation=self.GATED_FFN_ACT,
      use_repeat_layer=self.USE_REPEAT_LAYER,
      label_smoothing=self.LABEL_SMOOTHING,
      loss_denominator=self.LOSS_DENOMINATOR,
      aux_loss_coef=0.0,
    )
    gshard_settings.train_with_adafactor(
      p,
      warmup_steps=self.WARMUP_STEPS,
      max_steps=10_000_000,
      beta1=self.BETA1,
    )
    p.train.Set(
      async_checkpointing=True,
      save_max_to_keep=40,
      save_keep_checkpoint_every_n_hours=12,
    )
    return p

  def _Builder(self):
    """Returns the layers' sizes, and their sharding over the mesh."""
    return gshard_builder.DenseBuilder.Params().Set(
      dtype=tf.float32,
      fprop_dtype=tf.bfloat16,
      mask_dtype=tf.int32,
      model_dim=self.MODEL_DIM,
      ff_dim=self.HIDDEN_DIM,
      dropout_rate=self.DROPOUT_RATE,
      attention_dropout_prob=self.ATTENTION_DROPOUT_RATE,
      attention_num_heads=self.NUM_HEADS,
      attention_num_memory_heads=1,
      attention_key_value_dim=self.ATTENTION_KEY_VALUE_DIM,
      attention_combine_dims=True,
      attention_logits_dtype=tf.float32,
      atten_logit_cap=self.ATTEN_LOGIT_CAP,
      relative_attention_type='bias',
      relative_attention_use_universal_1d_position=True,
      device_mesh_shape=list(self.DEVICE_MESH_SHAPE),
      device_mesh=np.array(self.DEVICE_MESH),
      model_dim_reshape_segments=list(self.MODEL_DIM_RESHAPE_SEGMENTS),
      emb_w_split=[1, 0],
      kv_mhd_w_split=[1, -1, -1],
      emb_out_split=[0, -1, 1],
      blm_split=[0, -1, 1],
      logits_split=[0, -1, 1],
    )


class MLPerfTrainTemplate(BertTemplate):
  """A `BertTemplate` with MLPerf's data."""

  TRAIN_STEPS_PER_LOOP = 200
  TRAIN_EXES_PER_EVAL = 5

  def Train(self):
    """Returns the training records, packed and shuffled."""
    return input_generator.TFRecordBertInput.Params().Set(
      name='train',
      input_file='gs://mlperf_v1_1/bert/train',
      batch_size=self.BATCH_SIZE,
      enable_packing=True,
      shuffle=True,
      resettable=True,
    )

  def Test(self):
    """Returns the evaluation records, one per row."""
    return input_generator.TFRecordBertInput.Params().Set(
      name='test', input_file='gs://mlperf_v1_1/bert/eval', batch_size=512
    )

  def Task(self):
    """Returns the encoder with the mask id of the records' vocabulary."""
    p = super().Task()
    p.mask_token_id = p.masked_lm.mask_token_id = _MASK
    return p

  def ProgramSchedule(self):
    """Returns a schedule that evaluates ten batches of Test."""
    return gshard_settings.program_schedule(
      steps_per_loop=self.TRAIN_STEPS_PER_LOOP,
      loops_per_eval=self.TRAIN_EXES_PER_EVAL,
      eval_steps={'Test': 10},
    )


@model_registry.RegisterSingleTaskModel
class MLPerfTrainBertDense2B(MLPerfTrainTemplate):
  """An encoder of 2 billion parameters on 64 cores."""

  DEVICE_MESH_SHAPE = (16, 4)
  DEVICE_MESH = gshard_settings.mesh_by_rows(16, 4)
  MODEL_DIM_RESHAPE_SEGMENTS = (4,)

  MODEL_DIM = 4096
  HIDDEN_DIM = 16384
  NUM_HEADS = 16
  ATTENTION_KEY_VALUE_DIM = 256
  NUM_TRANSFORMER_LAYERS = 8
  VOCAB_SIZE = 30522


@model_registry.RegisterSingleTaskModel
class MLPerfBertDense1T(MLPerfTrainTemplate):
  """A deep encoder of 962 billion parameters on 1024 cores."""


@model_registry.RegisterSingleTaskModel
class MLPerfBertDense1TWider(MLPerfTrainTemplate):
  """A wide encoder of 893 billion parameters on 1024 cores, batches of 4096."""

  BATCH_SIZE = 4096
  MODEL_DIM = 32768
  HIDDEN_DIM = 262144
  NUM_TRANSFORMER_LAYERS = 32


@model_registry.RegisterSingleTaskModel
class MLPerfBertDense175B(MLPerfTrainTemplate):
  """An encoder of 203 billion parameters on 1024 cores."""

  MODEL_DIM = 12288
  HIDDEN_DIM = 49152
  NUM_HEADS = 96
  NUM_TRANSFORMER_LAYERS = 96
  POSITIONAL_EMBEDDING = True
  TRAIN_STEPS_PER_LOOP = 20


@model_registry.RegisterSingleTaskModel
class MLPerfBertDense500B(MLPerfTrainTemplate):
  """An encoder of 481 billion parameters on 1024 cores, batches of 4096."""

  BATCH_SIZE = 4096
  NUM_TRANSFORMER_LAYERS = 64
  VOCAB_SIZE = 30522
  LABEL_SMOOTHING = 0.1
  POSITIONAL_EMBEDDING = True
  TRAIN_STEPS_PER_LOOP = 100
  TRAIN_EXES_PER_EVAL = 1


@model_registry.RegisterSingleTaskModel
class MLPerfBertDense500B2K(MLPerfBertDense500B):
  """MLPerfBertDense500B on 2048 cores."""

  DEVICE_MESH_SHAPE = (256, 8)
  DEVICE_MESH = gshard_settings.mesh_by_columns(256, 8)
  MODEL_DIM_RESHAPE_SEGMENTS = (8,)


@model_registry.RegisterSingleTaskModel
class MLPerfBertDense13B32x32(MLPerfBertDense500B2K):
  """An encoder of 15 billion parameters on 2048 cores, batches of 4096."""

  DEVICE_MESH_SHAPE = (64, 32)
  DEVICE_MESH = gshard_settings.mesh_by_columns(64, 32)

  MODEL_DIM = 5120
  HIDDEN_DIM = 20480
  NUM_HEADS = 40
  NUM_TRANSFORMER_LAYERS = 40
  VOCAB_SIZE = 32000
