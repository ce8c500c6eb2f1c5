"""The device mesh, and the sharding of batches and weights over it."""

from pax_compat.trainer.partitioning.automatic import fully_sharded
from pax_compat.trainer.partitioning.batches import (
  BATCH_AXES,
  BatchSharding,
  batch_sharding,
  global_batch,
  local_row_numbers,
  local_rows,
  num_padding_rows,
  padded,
)
from pax_compat.trainer.partitioning.meshes import (
  create_mesh,
  mesh_of,
  mesh_of_one,
  mesh_of_task,
  num_devices,
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
  'create_mesh',
  'fully_sharded',
  'global_batch',
  'local_row_numbers',
  'local_rows',
  'mesh_of',
  'mesh_of_one',
  'mesh_of_task',
  'moved_splits',
  'num_devices',
  'num_padding_rows',
  'padded',
  'replicated',
  'weight_sharding',
]
