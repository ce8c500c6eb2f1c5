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
    '6 rows are not a multiple of the 4 shards of a batch: each has 2 padding'
    ' row(s) of weight 0',
    'every device has a copy of params/lm/softmax/logits_ffn/linear/w: 76.8 MB',
    'neither weights nor batches are split over mdl (2 devices)',
  )
