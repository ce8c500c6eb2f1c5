"""The device mesh, and the sharding of batches and weights over it."""

from pax_compat.trainer.partitioning.batches import (
  BATCH_AXES,
  BatchSharding,
  batch_sharding,
  check_batch,
  global_batch,
  local_row_numbers,
  local_rows,
)
from pax_compat.trainer.partitioning.meshes import (
  create_mesh,
  mesh_of,
  replicated,
)
from pax_compat.trainer.partitioning.weights import (
  Moved,
  WeightSplit,
  as_in_step,
  moved_splits,
  weight_sharding,
)

__all__ = [
  'BATCH_AXES',
  'BatchSharding',
  'Moved',
  'WeightSplit',
  'as_in_step',
  'batch_sharding',
  'check_batch',
  'create_mesh',
  'global_batch',
  'local_row_numbers',
  'local_rows',
  'mesh_of',
  'moved_splits',
  'replicated',
  'weight_sharding',
]
