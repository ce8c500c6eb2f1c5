"""Language models on the C4 corpus.

The experiments of `paxml.tasks.lm.params.c4`, with their numbers:

    python -m pax_compat.main --exp=tasks.lm.params.c4.C4Spmd1BAdam4Replicas \
      --tfds_data_dir=/data/c4 --job_log_dir=/data/run1

Hardware: the product of `ICI_MESH_SHAPE` and `DCN_MESH_SHAPE` in devices; Pax's
documents run this one on a TPU v4-8. `--check` prints what a device holds.
Time: `--compile_only` prints a bound of the step; not measured here, as the
corpus and the pods are not at hand.
Metric: `log_pplx` of the validation split, in nats per token. The GPT-3 models
stop at `TARGET_LOG_PPLX`, 2.69, that of MLPerf; not measured here.

`lm_tasks.c4_data` describes the data. The global batch is `PERCORE_BATCH_SIZE`
times the number of devices, which is the product of `ICI_MESH_SHAPE` and
`DCN_MESH_SHAPE`. The GPT-3 models are those of https://arxiv.org/abs/2005.14165
and of MLPerf's training benchmark.
"""

import pathlib

import jax.numpy as jnp

from lm_tasks import c4_data, model_params
from lm_tasks.model_params import adam
from lm_tasks.params import lm_cloud
from pax_compat import config, experiment_registry, layers
from pax_compat.base_layer import WeightInit
from pax_compat.config import Config
from pax_compat.tasks import early_stopping

# The names that derived experiments of Pax use.
C4UnsupervisedDataset = c4_data.C4UnsupervisedDataset
set_adam_and_learning_rate_schedule = adam.set_adam_and_learning_rate_schedule

GPT_EOS_ID = 1
# The name of the metric in `metrics.jsonl`.
_EVAL_LOG_PPLX = 'eval_C4Validation/log_pplx'


class TransformerLmSpmdAdam(
  adam.AdamSettings, model_params.TransformerLmSpmdAdafactor
):
  """A sharded Transformer language model, trained with Adam."""


class TransformerLmSpmdPipelineAdam(
  adam.AdamSettings, model_params.TransformerLmSpmdPipelineAdafactor
):
  """A Transformer language model in pipeline stages, trained with Adam."""


@experiment_registry.register
class LmCloudSpmdAdam(TransformerLmSpmdAdam, lm_cloud.SyntheticDataset):
  """Two layers on synthetic data, on 8 devices."""

  NUM_LAYERS = 2
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  ACTIVATION_CLS = layers.GELU
  ICI_MESH_SHAPE = [1, 4, 2]


@experiment_registry.register
class LmCloudSpmdAdamLimitSteps(LmCloudSpmdAdam):
  """LmCloudSpmdAdam for 4,000 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.train.num_train_steps = 4000
    return task


class EarlyStoppingFn(config.Configurable):
  """Ends a run when the validation data's log perplexity is low enough.

  Attributes:
    target_log_pplx: the log perplexity, in nats per token.
  """

  target_log_pplx: float = config.REQUIRED

  def __call__(
    self,
    metrics: dict[str, float],
    running_mode: early_stopping.RunningMode,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: pathlib.Path,
  ) -> bool:
    """Returns whether the run ends; see `early_stopping.EarlyStoppingFn`."""
    del running_mode, global_step, is_last_ckpt, checkpoint_path
    log_pplx = metrics.get(_EVAL_LOG_PPLX)
    return log_pplx is not None and log_pplx <= self.target_log_pplx


def configure_gpt3_task(cls: 'C4SpmdAdam', task_p: Config) -> Config:
  """Sets the details of GPT-3: initializers, norms, biases, early stopping.

  Args:
    cls: the experiment, or its class.
    task_p: config of its task.

  Returns:
    `task_p`, modified.
  """
  model = task_p.model
  lm, softmax, layer = (
    model.lm_tpl,
    model.lm_tpl.softmax_tpl,
    adam.layer_template(task_p),
  )
  model.decoder_tpl.set(eos_id=GPT_EOS_ID, seqlen=cls.MAX_SEQ_LEN)
  model.params_init = WeightInit.Gaussian(0.006)
  softmax.set(params_init=WeightInit.Gaussian(0.006), soft_cap_logits=None)
  softmax.feed_forward_tpl.has_bias = False
  embedding = lm.separate_embedding_tpl if cls.SEPARATE_EMBEDDING else softmax
  embedding.set(scale_sqrt_depth=False, lookup_style=cls.EMBEDDING_LOOKUP_STYLE)
  if cls.TRAINABLE_POSITION_EMB:
    lm.position_emb_tpl.lookup_style = cls.EMBEDDING_LOOKUP_STYLE
  for norm in (layer.ln_tpl, layer.tr_fflayer_tpl.ln_tpl, lm.final_ln_tpl):
    norm.epsilon = cls.LAYERNORM_EPSILON
  layer.tr_atten_tpl.set(internal_enable_per_dim_scale=False, use_bias=True)
  layer.tr_fflayer_tpl.activation_tpl.approximate = True
  for attention in (layer.tr_atten_tpl, layer.cross_atten_tpl):
    if attention is not None:
      attention.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  if task_p.early_stopping_fn is None:
    task_p.early_stopping_fn = EarlyStoppingFn.config(
      target_log_pplx=cls.TARGET_LOG_PPLX
    )
  return task_p


class _C4Settings:
  """Settings of a model on C4; mixed into a base class of this module."""

  PERCORE_BATCH_SIZE: float  # Of `C4UnsupervisedDataset`.
  NUM_LAYERS = 24
  NUM_HEADS = 32
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = None
  VOCAB_SIZE = 32128
  ACTIVATION_CLS = layers.GELU
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_DOT_FOR_MLPERF_200B
  CHECKPOINT_EVERY_N_STEPS = 1000

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.model.decoder_tpl.set(eos_id=GPT_EOS_ID, seqlen=self.MAX_SEQ_LEN)
    return task


@experiment_registry.register
class C4SpmdAdam(_C4Settings, TransformerLmSpmdAdam, C4UnsupervisedDataset):
  """A decoder-only Transformer of 1.3 billion parameters on 8 devices."""

  ICI_MESH_SHAPE = [1, 4, 2]


class _Gpt3Settings:
  """Settings of GPT-3 with 175 billion parameters; mixed into a C4 model.

  Schedules are for batches of 1,536 examples.

  Class attributes, beyond those that are fields of layers:
    LAYERNORM_EPSILON: epsilon of all norms.
    TARGET_LOG_PPLX: the log perplexity of the validation data, in nats per
      token, at which a run ends.
  """

  MAX_SEQ_LEN = 2048
  NUM_LAYERS = 96
  NUM_HEADS = 96
  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = None
  VOCAB_SIZE = 50257
  TRAINABLE_POSITION_EMB = True
  TRAINABLE_PE_MAX_SEQ_LEN = 16384
  ATTEN_LOGIT_CAP = -1.0  # None.

  LEARNING_RATE = 6e-5
  WEIGHT_DECAY = 0.1
  ADAM_BETA1 = 0.9
  ADAM_BETA2 = 0.95
  ADAM_EPSILON = 1e-8
  ADAM_CLIP_THRESHOLD = -1.0  # No clipping.
  CLIP_GRADIENT_NORM_TO_VALUE = 1.0
  LAYERNORM_EPSILON = 1e-5

  LR_SCHEDULE = 'linear_rampup_cosine_decay'
  LR_COS_WARMUP = 265
  LR_COS_DECAY_START = LR_COS_WARMUP + 1
  LR_COS_DECAY_END = 108_600
  LR_COS_MAX = 1.0
  LR_COS_MIN_RATIO = 0.1

  TARGET_LOG_PPLX = 2.69
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_NOTHING
  EVAL_INTERVAL_STEPS = 100
  SUMMARY_INTERVAL_STEPS = 10
  CHECKPOINT_EVERY_N_STEPS = 100
  CHECKPOINT_MAX_TO_KEEP = 10

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return configure_gpt3_task(self, super().task())


class C4SpmdGpt3AdamOrgHP(_Gpt3Settings, C4SpmdAdam):
  """GPT-3 with the hyperparameters of its paper, as Megatron-LM has them."""

  USE_REPEATED_LAYER = True


@experiment_registry.register
class C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas(C4SpmdGpt3AdamOrgHP):
  """GPT-3 in float32 on 1,536 devices, in batches of 1,536."""

  VOCAB_SIZE = 51200
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 64, 24]
  CHECKPOINT_MAX_TO_KEEP = 100
  EVAL_INTERVAL_STEPS = 25
  SUMMARY_INTERVAL_STEPS = 1


@experiment_registry.register
class C4SpmdPipelineAdam(
  _C4Settings, TransformerLmSpmdPipelineAdam, C4UnsupervisedDataset
):
  """C4SpmdAdam in two pipeline stages."""

  MICROBATCH_SIZE = 2
  ICI_MESH_SHAPE = [2, 1, 2, 2]
  NUM_STAGES = 2
  EMB_W_DATA_DIMS = ('replica', 'data')


class C4SpmdPipelineGpt3AdamOrgHP(_Gpt3Settings, C4SpmdPipelineAdam):
  """C4SpmdGpt3AdamOrgHP in pipeline stages."""


class C4SpmdPipelineGpt3AdamMLPerfHP(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 with the hyperparameters of MLPerf, which fit the global batch.

  A derived class sets EVAL_INTERVAL_STEPS and CHECKPOINT_EVERY_N_STEPS.
  """

  VOCAB_SIZE = 51200
  SUMMARY_INTERVAL_STEPS = 1
  EVAL_INTERVAL_STEPS = None
  CHECKPOINT_EVERY_N_STEPS = None
  CHECKPOINT_MAX_TO_KEEP = 100
  LEARNING_RATE = None
  LR_COS_WARMUP = None
  LR_COS_DECAY_START = None
  LR_COS_DECAY_END = None


@experiment_registry.register
class C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 in float32 on 768 devices, in batches of 1,536.

  The size of microbatches is that of C4SpmdPipelineAdam: Pax's file misspells
  an attribute that would make it 8.
  """

  PERCORE_BATCH_SIZE = 2
  VOCAB_SIZE = 51200
  NUM_STAGES = 8
  ICI_MESH_SHAPE = [8, 1, 8, 12]
  CHECKPOINT_MAX_TO_KEEP = 100
  EVAL_INTERVAL_STEPS = 25
  SUMMARY_INTERVAL_STEPS = 1
  CHECKPOINT_EVERY_N_STEPS = 50


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 768 devices, in batches of 1,536, for MLPerf."""

  PERCORE_BATCH_SIZE = 2
  NUM_STAGES = 8
  ICI_MESH_SHAPE = [8, 1, 8, 12]
  MICROBATCH_SIZE = 8
  EVAL_INTERVAL_STEPS = 16
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 512 devices, in batches of 2,048, for MLPerf."""

  PERCORE_BATCH_SIZE = 4
  NUM_STAGES = 8
  ICI_MESH_SHAPE = [8, 1, 8, 8]
  MICROBATCH_SIZE = 8
  EVAL_INTERVAL_STEPS = 12
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2
  STREAM_IO = True


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 768 devices, in batches of 3,072, for MLPerf."""

  PERCORE_BATCH_SIZE = 4
  NUM_STAGES = 4
  ICI_MESH_SHAPE = [4, 1, 16, 12]
  MICROBATCH_SIZE = 16
  EVAL_INTERVAL_STEPS = 8
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2
  STREAM_IO = True


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 1,024 devices, in batches of 4,096, for MLPerf."""

  PERCORE_BATCH_SIZE = 4
  NUM_STAGES = 8
  ICI_MESH_SHAPE = [8, 1, 8, 16]
  MICROBATCH_SIZE = 8
  EVAL_INTERVAL_STEPS = 6
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2
  STREAM_IO = True


@experiment_registry.register
class C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas(
  C4SpmdPipelineGpt3AdamMLPerfHP
):
  """GPT-3 in float32 on 1,024 devices, in batches of 8,192, for MLPerf."""

  PERCORE_BATCH_SIZE = 8
  NUM_STAGES = 4
  ICI_MESH_SHAPE = [4, 1, 16, 16]
  MICROBATCH_SIZE = 16
  EVAL_INTERVAL_STEPS = 3
  CHECKPOINT_EVERY_N_STEPS = EVAL_INTERVAL_STEPS * 2
  STREAM_IO = True


class _C4SpmdBfloat16(C4SpmdAdam):
  """C4SpmdAdam with a repeated layer, in bfloat16."""

  VOCAB_SIZE = 32000
  DIMS_PER_HEAD = 128
  FPROP_DTYPE = jnp.bfloat16
  USE_REPEATED_LAYER = True
  SUMMARY_INTERVAL_STEPS = 10
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_NOTHING


@experiment_registry.register
class C4Spmd1BAdam4Replicas(_C4SpmdBfloat16):
  """1 billion parameters on 4 devices, in batches of 128."""

  NUM_LAYERS = 13
  MODEL_DIMS = 2560
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 20
  PERCORE_BATCH_SIZE = 32
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd1BAdam4ReplicasLimitSteps(C4Spmd1BAdam4Replicas):
  """C4Spmd1BAdam4Replicas for 15,000 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.train.num_train_steps = 15_000
    return task


@experiment_registry.register
class C4Spmd2BAdam4Replicas(_C4SpmdBfloat16):
  """2 billion parameters on 4 devices, in batches of 128."""

  NUM_LAYERS = 18
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  PERCORE_BATCH_SIZE = 32
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd16BAdam32Replicas(_C4SpmdBfloat16):
  """16 billion parameters on 32 devices, in batches of 512."""

  NUM_LAYERS = 36
  MODEL_DIMS = 6144
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 48
  PERCORE_BATCH_SIZE = 16
  ICI_MESH_SHAPE = [1, 16, 2]


@experiment_registry.register
class C4Spmd32BAdam64Replicas(_C4SpmdBfloat16):
  """32 billion parameters on 64 devices, in batches of 512."""

  NUM_LAYERS = 40
  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 64
  PERCORE_BATCH_SIZE = 8
  ICI_MESH_SHAPE = [1, 16, 4]


@experiment_registry.register
class C4SpmdGpt3L16AdamOrgHP(C4SpmdGpt3AdamOrgHP):
  """16 layers of GPT-3 in bfloat16 on 64 devices, in batches of 192."""

  NUM_LAYERS = 16
  FPROP_DTYPE = jnp.bfloat16
  PERCORE_BATCH_SIZE = 3
  EVAL_INTERVAL_STEPS = 25_000
  ICI_MESH_SHAPE = [1, 16, 4]


class _C4SpmdPipelineGpt3Small(C4SpmdPipelineGpt3AdamOrgHP):
  """GPT-3 XL, of 2.9 billion parameters here, in bfloat16."""

  NUM_LAYERS = 24
  NUM_HEADS = 24
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = 128
  FPROP_DTYPE = jnp.bfloat16
  LEARNING_RATE = 2e-4
  CHECKPOINT_MAX_TO_KEEP = 1000
  EVAL_INTERVAL_STEPS = 10
  SUMMARY_INTERVAL_STEPS = 5
  CHECKPOINT_EVERY_N_STEPS = 200


@experiment_registry.register
class C4SpmdPipelineGpt3SmallAdam8Replicas(_C4SpmdPipelineGpt3Small):
  """GPT-3 XL in two pipeline stages on 8 devices, in batches of 512."""

  NUM_STAGES = 2
  VOCAB_SIZE = 51200
  PERCORE_BATCH_SIZE = 64
  MICROBATCH_SIZE = 8
  ICI_MESH_SHAPE = [2, 1, 2, 2]


@experiment_registry.register
class C4SpmdPipelineGpt3SmallAdam64Replicas(_C4SpmdPipelineGpt3Small):
  """GPT-3 XL in four pipeline stages on 64 devices, in batches of 64.

  The experiment of Pax's documents; later versions of Pax have
  C4SpmdPipelineGpt3SmallAdam8Replicas instead. The batch has one example per
  device, because Pax's file misspells the attribute that would make it 8:
  --attr=PERCORE_BATCH_SIZE=8.
  """

  NUM_STAGES = 4
  MICROBATCH_SIZE = 16
  ICI_MESH_SHAPE = [4, 1, 4, 4]
