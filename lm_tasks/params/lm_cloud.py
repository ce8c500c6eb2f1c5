"""Language models of many sizes on synthetic data, for cloud accelerators.

They measure the cost of a model size on a mesh; the task they learn is to
count. On a laptop's CPU try `LmCloudSpmdTest`:

    python -m pax_compat.main --exp=tasks.lm.params.lm_cloud.LmCloudSpmdTest \
      --job_log_dir=/tmp/lm_cloud

The global batch is `PERCORE_BATCH_SIZE` times the number of devices, which is
the product of `ICI_MESH_SHAPE`.
"""

from lm_tasks.transformer_lm import (
  SyntheticData,
  TransformerLm,
  TransformerLmAdam,
)
from pax_compat import experiment_registry, layers, optimizers


@experiment_registry.register
class LmCloudTransformerAdam(TransformerLmAdam, SyntheticData):
  """32 layers and 0.4 billion parameters, replicated on every device."""

  NUM_LAYERS = 32
  NUM_HEADS = 16
  DIMS_PER_HEAD = None
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4


@experiment_registry.register
class LmCloudTransformerAdamTest(LmCloudTransformerAdam):
  """LmCloudTransformerAdam with two layers."""

  NUM_LAYERS = 2


@experiment_registry.register
class LmCloudTransformerAdamLimitSteps(LmCloudTransformerAdam):
  """LmCloudTransformerAdam with ten layers, for 2,000 steps."""

  NUM_LAYERS = 10
  NUM_TRAIN_STEPS = 2000


class LmCloudSpmd(TransformerLm, SyntheticData):
  """A repeated layer in bfloat16, sharded over a mesh, trained with Adam."""

  ACTIVATION_CLS = layers.GELU
  USE_REPEATED_LAYER = True

  def _optimizer(self):
    return optimizers.Adam.config(
      beta1=0.9, beta2=0.99, weight_decay=self.WEIGHT_DECAY
    )


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

  NUM_TRAIN_STEPS = 300


@experiment_registry.register
class LmCloudSpmd32B(LmCloudSpmd):
  """32 billion parameters on 64 devices."""

  PERCORE_BATCH_SIZE = 8
  NUM_LAYERS = 40
  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ
  ICI_MESH_SHAPE = [1, 16, 4]


@experiment_registry.register
class LmCloudSpmd64B(LmCloudSpmd):
  """64 billion parameters on 128 devices."""

  PERCORE_BATCH_SIZE = 4
  NUM_LAYERS = 51
  MODEL_DIMS = 10240
  HIDDEN_DIMS = MODEL_DIMS * 4
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ
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
