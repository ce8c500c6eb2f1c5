"""Language models on the C4 corpus, on one or several slices of a TPU pod.

The experiments of `paxml.tasks.lm.params.c4_multislice`, with their numbers:

    python -m pax_compat.main \
      --exp=tasks.lm.params.c4_multislice.C4Spmd22BAdam2xv4_128 \
      --tfds_data_dir=gs://bucket/c4 --job_log_dir=gs://bucket/run1

Hardware: as many slices of type v4-128 as the name says; `docs/pods.md` starts
them.
Time: `--compile_only` prints a bound of the step; not measured here.
Metric: steps per second of more slices, and `log_pplx` of the validation split,
in nats per token; not measured here.

In
`C4Spmd22BAdam2xv4_128` two slices of type v4-128, each of 64 devices, train a
model of 22 billion parameters. Slices are replicas: only gradients cross the
network between them.
"""

# ruff: noqa: N801 (the names are Pax's)

import jax.numpy as jnp

from lm_tasks.params import c4
from pax_compat import experiment_registry, layers
from pax_compat.config import Config

_LIMITED_STEPS = 300


def _limited(task: Config) -> Config:
  """Returns a task, limited to 300 steps."""
  task.train.num_train_steps = _LIMITED_STEPS
  return task


@experiment_registry.register
class C4Spmd22BAdamMaxText(c4.C4SpmdAdam):
  """22 billion parameters, of the sizes of a MaxText model."""

  NUM_LAYERS = 48
  MODEL_DIMS = 6144
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  DIMS_PER_HEAD = 256
  PERCORE_BATCH_SIZE = 16
  MAX_SEQ_LEN = 1024
  VOCAB_SIZE = 32768
  FPROP_DTYPE = jnp.bfloat16
  USE_REPEATED_LAYER = True
  SUMMARY_INTERVAL_STEPS = 10
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_NOTHING


@experiment_registry.register
class C4Spmd22BAdam1xv4_128(C4Spmd22BAdamMaxText):
  """22 billion parameters on 64 devices, in batches of 1,024."""

  ICI_MESH_SHAPE = [1, 64, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_128(C4Spmd22BAdam1xv4_128):
  """22 billion parameters on two slices of 64 devices, batches of 2,048."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam4xv4_128(C4Spmd22BAdam1xv4_128):
  """22 billion parameters on four slices of 64 devices, batches of 4,096."""

  DCN_MESH_SHAPE = [4, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_128LimitSteps(C4Spmd22BAdam1xv4_128):
  """C4Spmd22BAdam1xv4_128 for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return _limited(super().task())


@experiment_registry.register
class C4Spmd22BAdam2xv4_128LimitSteps(C4Spmd22BAdam2xv4_128):
  """C4Spmd22BAdam2xv4_128 for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return _limited(super().task())


@experiment_registry.register
class C4Spmd22BAdam4xv4_128LimitSteps(C4Spmd22BAdam4xv4_128):
  """C4Spmd22BAdam4xv4_128 for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return _limited(super().task())


@experiment_registry.register
class C4Spmd22BAdam1xv4_384(C4Spmd22BAdamMaxText):
  """24 wider layers on 192 devices, in batches of 1,920."""

  NUM_LAYERS = 24
  MODEL_DIMS = 9216
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 24
  DIMS_PER_HEAD = 384
  PERCORE_BATCH_SIZE = 10
  ICI_MESH_SHAPE = [1, 192, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_384(C4Spmd22BAdam1xv4_384):
  """24 wider layers on two slices of 192 devices, in batches of 3,840."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_8(C4Spmd22BAdamMaxText):
  """16 narrower layers on 4 devices, in batches of 64."""

  NUM_LAYERS = 16
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 8
  ICI_MESH_SHAPE = [1, 4, 1]


@experiment_registry.register
class C4Spmd22BAdam2xv4_8(C4Spmd22BAdam1xv4_8):
  """16 narrower layers on two slices of 4 devices, in batches of 128."""

  DCN_MESH_SHAPE = [2, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam4xv4_8(C4Spmd22BAdam1xv4_8):
  """16 narrower layers on four slices of 4 devices, in batches of 256."""

  DCN_MESH_SHAPE = [4, 1, 1]


@experiment_registry.register
class C4Spmd22BAdam1xv4_8LimitSteps(C4Spmd22BAdam1xv4_8):
  """C4Spmd22BAdam1xv4_8 for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return _limited(super().task())


@experiment_registry.register
class C4Spmd22BAdam2xv4_8LimitSteps(C4Spmd22BAdam2xv4_8):
  """C4Spmd22BAdam2xv4_8 for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return _limited(super().task())


@experiment_registry.register
class C4Spmd22BAdam4xv4_8LimitSteps(C4Spmd22BAdam4xv4_8):
  """C4Spmd22BAdam4xv4_8 for 300 steps."""

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    return _limited(super().task())


@experiment_registry.register
class C4SpmdGpt3AdamDataParallel2x16x16(c4.C4SpmdGpt3AdamOrgHP):
  """GPT-3 in bfloat16 on two slices of 256 devices, for 100 steps."""

  PERCORE_BATCH_SIZE = 0.5
  ICI_MESH_SHAPE = [1, 16, 16]
  DCN_MESH_SHAPE = [2, 1, 1]
  FPROP_DTYPE = jnp.bfloat16
  CHECKPOINT_EVERY_N_STEPS = 2000

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task().set(summary_verbosity=0)
    task.train.num_train_steps = 100
    return task


@experiment_registry.register
class C4Spmd32BAdam1xv5_256(C4Spmd22BAdam1xv4_128):
  """32 billion parameters on 128 devices, in batches of 256."""

  NUM_LAYERS = 40
  MODEL_DIMS = 8192
  HIDDEN_DIMS = MODEL_DIMS * 4
  NUM_HEADS = 32
  PERCORE_BATCH_SIZE = 2
  MAX_SEQ_LEN = 2048
  ICI_MESH_SHAPE = [1, 128, 1]


@experiment_registry.register
class C4Spmd32BAdam2xv5_256(C4Spmd32BAdam1xv5_256):
  """32 billion parameters on two slices of 128 devices, batches of 512."""

  DCN_MESH_SHAPE = [2, 1, 1]
