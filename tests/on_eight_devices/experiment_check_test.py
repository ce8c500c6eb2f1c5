"""Tests of the warnings of `--check`, on a mesh of eight devices."""

from lm_tasks.params import lm_cloud
from pax_compat.experiments import resolved
from pax_compat.tools import experiment_check


class Wasteful(lm_cloud.LmCloudSpmdTest):
  """Has a mesh, but no sharding of weights, and few rows."""

  VOCAB_SIZE = 300_000
  MAX_SEQ_LEN = 16
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = None

  def task(self):
    task = super().task()
    task.model.set(
      ici_mesh_shape=[1, 4, 2], mesh_axis_names=['replica', 'data', 'mdl']
    )
    return task

  def datasets(self):
    datasets = super().datasets()
    for config in datasets:
      config.batch_size = 6
    return datasets


def test_warnings():
  found = experiment_check.examine(resolved.resolve(Wasteful(), name='w'))
  assert found.warnings == (
    "the batch field 'ids' of shape [6, 16] cannot be divided over the 4"
    ' device(s) of this process: expected a batch size that is a multiple of 4',
    'every device has a copy of params/lm/softmax/logits_ffn/linear/w: 76.8 MB',
    'neither weights nor batches are split over mdl (2 devices)',
  )
