"""Language models of many sizes on synthetic data, for cloud accelerators.

The experiments of `paxml.tasks.lm.params.lm_cloud`, with their numbers. They
measure the cost of a model size on a mesh; the task they learn is to count. On
a laptop's CPU try `LmCloudSpmdTest`, or shrink another one by its class
attributes:

    python -m pax_compat.main --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B \
      --attr=NUM_LAYERS=2 --attr=MODEL_DIMS=128 --attr=HIDDEN_DIMS=512 \
      --attr=ICI_MESH_SHAPE=[1,1,1] --job_log_dir=/tmp/lm_cloud

Hardware: the product of `ICI_MESH_SHAPE` and `DCN_MESH_SHAPE` in devices; one
for `LmCloudSpmdTest` and for the command above, a TPU v4-8 for `LmCloudSpmd2B`.
Time: `--compile_only` prints a bound of the step; not measured here.
Metric: `steps_per_second` and, with `--peak_tflops`, the MFU. The loss only
shows that the model learns to count.

The global batch is `PERCORE_BATCH_SIZE` times the number of devices, which is
the product of `ICI_MESH_SHAPE` and `DCN_MESH_SHAPE`.
"""

import math

import jax
import jax.numpy as jnp

from lm_tasks import model_params, synthetic_lm
from pax_compat import base_experiment, experiment_registry, layers
from pax_compat.config import Config

_SAVE_CONTEXT = layers.AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ


class SyntheticDataset(base_experiment.BaseExperiment):
  """Synthetic rows, to measure a model's speed and memory.

  Class attributes:
    PERCORE_BATCH_SIZE: rows of a batch per device; may be a fraction.
    MAX_SEQ_LEN: tokens of a row.
    VOCAB_SIZE: number of tokens.
    EVAL_BATCHES: batches of an evaluation.
  """

  PERCORE_BATCH_SIZE: float = 16
  MAX_SEQ_LEN = 1024
  VOCAB_SIZE = 32000
  EVAL_BATCHES = 10

  def _dataset_common(self, is_training: bool) -> Config:
    """Returns an endless training set, or a finite eval set."""
    data = synthetic_lm.SyntheticLmInput.config(
      name='train' if is_training else 'dev',
      is_training=is_training,
      batch_size=math.ceil(self.PERCORE_BATCH_SIZE * jax.local_device_count()),
      num_infeed_hosts=jax.process_count(),
      seq_len=self.MAX_SEQ_LEN,
      vocab_size=self._num_tokens(),
    )
    if is_training:
      return data
    return data.set(
      input_random_seed=1, num_batches=self.EVAL_BATCHES, reset_for_eval=True
    )

  def datasets(self) -> list[Config]:
    """Returns both."""
    return [self._dataset_common(is_training=x) for x in (True, False)]

  def _num_tokens(self) -> int:
    return self.VOCAB_SIZE


class _Mlp(model_params.ClassificationModelAdam, SyntheticDataset):
  """Eight products on 8 devices; the weights are not sharded.

  The loss is the cross entropy. In Pax it is the accuracy, which has no
  gradient, so that nothing is learned.
  """

  MESH_SHAPE = [8, 1, 1]
  MLP_WEIGHT_SHARDING = [-1, -1]
  SOFTMAX_WEIGHT_SHARDING = [-1, -1]

  def _num_tokens(self) -> int:
    return self.INPUT_DIM


@experiment_registry.register
class LargeMlp(_Mlp):
  """Eight products of 4,096 and 7,168 dims on 8 devices."""

  HIDDEN_DIM = 7168


@experiment_registry.register
class SmallMlp(_Mlp):
  """Eight products of 1,024 dims on 8 devices."""

  INPUT_DIM = 1024
  OUTPUT_DIM = 1024
  HIDDEN_DIM = 1024


@experiment_registry.register
class LmCloudTransformerAdam(
  model_params.TransformerLmPmapAdam, SyntheticDataset
):
  """32 layers and 0.4 billion parameters, replicated on every device."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.train.learner.repeat_prefix_sep = '_'
    return task


@experiment_registry.register
class LmCloudTransformerAdamTest(LmCloudTransformerAdam):
  """LmCloudTransformerAdam with two layers."""

  NUM_LAYERS = 2


@experiment_registry.register
class LmCloudTransformerAdamLimitSteps(LmCloudTransformerAdam):
  """LmCloudTransformerAdam with ten layers, for 2,000 steps."""

  NUM_LAYERS = 10

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.train.num_train_steps = 2000
    return task


class LmCloudSpmd(model_params.TransformerLmSpmdAdafactor, SyntheticDataset):
  """A repeated layer in bfloat16, sharded over a mesh, trained with Adam."""

  ACTIVATION_CLS = layers.GELU
  USE_REPEATED_LAYER = True

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    model_params.set_default_adam(task, self.LEARNING_RATE, self.WEIGHT_DECAY)
    task.train.learner.repeat_prefix_sep = '_'
    return task


@experiment_registry.register
class LmCloudSpmdTest(LmCloudSpmd):
  """A model small enough for a CPU, on one device."""

  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 2
  MODEL_DIMS = 64
  HIDDEN_DIMS = MODEL_DIMS * 4
  DIMS_PER_HEAD = 8
  ICI_MESH_SHAPE = [1, 1, 1]


@experiment_registry.register
class LmCloudSpmd2B(LmCloudSpmd):
  """2 billion parameters on 4 devices."""

  PERCORE_BATCH_SIZE = 8
  NUM_LAYERS = 18
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class LmCloudSpmd2BLimitSteps(LmCloudSpmd2B):
  """LmCloudSpmd2B for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    task.train.num_train_steps = 300
    return task


@experiment_registry.register
class LmCloudSpmd32B(LmCloudSpmd):
  """32 billion parameters on 64 devices."""

  PERCORE_BATCH_SIZE = 8
  NUM_LAYERS = 40
  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  CHECKPOINT_POLICY = _SAVE_CONTEXT
  ICI_MESH_SHAPE = [1, 16, 4]


@experiment_registry.register
class LmCloudSpmd64B(LmCloudSpmd):
  """64 billion parameters on 128 devices."""

  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 51
  MODEL_DIMS = 10240
  HIDDEN_DIMS = MODEL_DIMS * 4
  CHECKPOINT_POLICY = _SAVE_CONTEXT
  ICI_MESH_SHAPE = [1, 16, 8]


@experiment_registry.register
class LmCloudSpmd128B(LmCloudSpmd):
  """128 billion parameters on 256 devices."""

  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 71
  MODEL_DIMS = 12288
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 64, 4]


@experiment_registry.register
class LmCloudSpmd256B(LmCloudSpmd):
  """256 billion parameters on 512 devices."""

  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 80
  MODEL_DIMS = 16384
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 64, 8]


@experiment_registry.register
class LmCloudSpmd512B(LmCloudSpmd):
  """512 billion parameters on 1,024 devices."""

  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 102
  MODEL_DIMS = 20480
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 64, 16]


@experiment_registry.register
class LmCloudSpmd1024B(LmCloudSpmd):
  """1,024 billion parameters on 2,048 devices."""

  PERCORE_BATCH_SIZE = 2
  NUM_LAYERS = 142
  MODEL_DIMS = 24576
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 256, 8]


@experiment_registry.register
class LmCloudSpmdMultislice2B(LmCloudSpmd):
  """2 billion parameters, replicated over two slices of 4 devices."""

  PERCORE_BATCH_SIZE = 16
  NUM_LAYERS = 18
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 4, 1]
  DCN_MESH_SHAPE = [2, 1, 1]


class LmCloudSpmdPipeline(
  model_params.TransformerLmSpmdPipelineAdafactor, SyntheticDataset
):
  """Layers in pipeline stages, in bfloat16, trained with Adam."""

  ACTIVATION_CLS = layers.GELU

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    model_params.set_default_adam(task, self.LEARNING_RATE, self.WEIGHT_DECAY)
    return task


@experiment_registry.register
class LmCloudSpmdPipeline9B(LmCloudSpmdPipeline):
  """9 billion parameters in float32: 16 stages, each on 4 devices."""

  MICROBATCH_SIZE = 4
  PERCORE_BATCH_SIZE = 8
  NUM_STAGES = 16
  NUM_LAYERS = 48
  MODEL_DIMS = 4096
  HIDDEN_DIMS = MODEL_DIMS * 4
  FPROP_DTYPE = jnp.float32
  ICI_MESH_SHAPE = [16, 4, 1, 1]


@experiment_registry.register
class LmCloudSpmdPipeline175B(LmCloudSpmdPipeline):
  """175 billion parameters: 8 hosts of 16 devices, a stage on each host."""

  MICROBATCH_SIZE = 2
  PERCORE_BATCH_SIZE = 0.75
  NUM_STAGES = 8
  NUM_LAYERS = 96
  MODEL_DIMS = 12288
  NUM_HEADS = 96
  MAX_SEQ_LEN = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 1, 1, 16]
  DCN_MESH_SHAPE = [8, 1, 1, 1]


@experiment_registry.register
class LmCloudSpmdPipelineMultislice2B(LmCloudSpmdPipeline):
  """2 billion parameters: two slices of 4 devices, a stage on each slice."""

  MICROBATCH_SIZE = 4
  PERCORE_BATCH_SIZE = 16
  NUM_STAGES = 2
  NUM_LAYERS = 18
  MODEL_DIMS = 3072
  HIDDEN_DIMS = MODEL_DIMS * 4
  ICI_MESH_SHAPE = [1, 4, 1, 1]
  DCN_MESH_SHAPE = [2, 1, 1, 1]
  EMB_W_DATA_DIMS = ('replica', 'data')
  STREAM_IO = True


@experiment_registry.register
class LmCloudSpmdPipelineMultislice2BCircular(LmCloudSpmdPipelineMultislice2B):
  """LmCloudSpmdPipelineMultislice2B, where batches pass the stages 3 times."""

  MICROBATCH_SIZE = 8
  CIRCULAR_REPEAT = 3
