"""Experiments of Pax at a tiny size, and a batch for them."""

from typing import Any

import jax.numpy as jnp
import numpy as np

_VOCAB, _TIME, _ROWS, _STAGES = 24, 8, 4, 2

# One or more of each kind of network, but no MLPs: their loss in Pax is the
# accuracy, which has no gradient.
EXPERIMENTS = (
  'c4.C4Spmd1BAdam4Replicas',
  'c4.C4SpmdAdam',
  'c4.C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas',
  'c4.C4SpmdPipelineGpt3SmallAdam8Replicas',
  'c4_multislice.C4Spmd22BAdam2xv4_128',
  'c4_multislice.C4SpmdGpt3AdamDataParallel2x16x16',
  'lm_cloud.LmCloudSpmd2B',
  'lm_cloud.LmCloudSpmdPipeline9B',
  'lm_cloud.LmCloudSpmdPipelineMultislice2BCircular',
  'lm_cloud.LmCloudTransformerAdam',
)


def shrunk(cls: type) -> Any:
  """Returns an instance of an experiment's class with tiny attributes.

  Args:
    cls: a class of Pax, or ours of the same name.
  """
  sizes = dict(
    NUM_LAYERS=2,
    NUM_LAYER=2,
    MODEL_DIMS=8,
    INPUT_DIM=_VOCAB,
    OUTPUT_DIM=_VOCAB,
    HIDDEN_DIMS=16,
    HIDDEN_DIM=16,
    VOCAB_SIZE=_VOCAB,
    MAX_SEQ_LEN=_TIME,
    TRAINABLE_PE_MAX_SEQ_LEN=_TIME,
    PERCORE_BATCH_SIZE=_ROWS,
    DIMS_PER_HEAD=4,
    FPROP_DTYPE=jnp.float32,
  )
  if getattr(cls, 'NUM_HEADS', None) is not None:
    sizes['NUM_HEADS'] = 2
  for name in ('ICI_MESH_SHAPE', 'DCN_MESH_SHAPE'):
    if getattr(cls, name, None) is not None:
      sizes[name] = [1] * len(getattr(cls, name))
  if getattr(cls, 'NUM_STAGES', None):
    sizes |= dict(
      NUM_LAYERS=_STAGES * getattr(cls, 'CIRCULAR_REPEAT', 1),
      NUM_STAGES=_STAGES,
      NUM_MICROBATCHES=_STAGES,
      MICROBATCH_SIZE=None,
      ICI_MESH_SHAPE=[_STAGES, 1, 1, 1],
    )
  known = {name: value for name, value in sizes.items() if hasattr(cls, name)}
  return type(cls.__name__, (cls,), known)()


def rows_of_microbatches(cls: type) -> int:
  """Returns the rows of a batch that has a microbatch for each stage."""
  rows = getattr(cls, 'MICROBATCH_SIZE', None) or 1
  return rows * (getattr(cls, 'NUM_STAGES', None) or 1)


def batch(rows: int = _ROWS) -> dict[str, np.ndarray]:
  """Returns a batch of packed rows, some with padding at their end."""
  random = np.random.default_rng(0)
  paddings = np.zeros([rows, _TIME], np.float32)
  paddings[0, -3:] = 1
  segments = np.where(np.arange(_TIME) < 5, 1, 2) * (1 - paddings)
  positions = np.where(
    np.arange(_TIME) < 5, np.arange(_TIME), np.arange(_TIME) - 5
  )
  return dict(
    ids=random.integers(1, _VOCAB, [rows, _TIME]).astype(np.int32),
    labels=random.integers(1, _VOCAB, [rows, _TIME]).astype(np.int32),
    paddings=paddings,
    weights=1 - paddings,
    segment_ids=segments.astype(np.int32),
    segment_pos=np.tile(positions.astype(np.int32), [rows, 1]),
  )
