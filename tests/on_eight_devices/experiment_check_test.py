"""Tests of the warnings of `--check`, on a mesh of eight devices."""

import functools

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


class TwoSlices(lm_cloud.LmCloudSpmdTest):
  """A mesh of two slices of four devices."""

  MAX_SEQ_LEN = 16
  PERCORE_BATCH_SIZE = 1
  ICI_MESH_SHAPE = [1, 2, 2]
  DCN_MESH_SHAPE = [2, 1, 1]
  MESH_AXIS_NAMES = ['replica', 'data', 'mdl']


def test_auto_sharding_keeps_weights_within_a_slice_of_the_experiment():
  resolve = functools.partial(resolved.resolve, TwoSlices(), name='slices')
  auto = experiment_check.examine(
    resolve(settings=['task.train.auto_sharding=True'])
  )
  assert auto.mesh == dict(replica=2, data=4, mdl=1)
  (line,) = auto.notes
  assert line.startswith('auto sharding: batches over replica, data; ')
