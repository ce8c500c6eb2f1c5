"""Tests of the language models for cloud accelerators."""

import json
import math
import pathlib
import re

import jax
import pytest

from lm_tasks.params import lm_cloud
from pax_compat import base_layer, experiment_registry
from pax_compat.experiment_sources import SourceOptions
from pax_compat.nested_map import NestedMap
from tests.pax_compat import trainer_runs

_PAGE = (
  pathlib.Path(__file__).resolve().parents[3] / 'docs/programming_model.md'
)
_BILLIONS = {
  'LmCloudTransformerAdam': 0.44,
  'LmCloudTransformerAdamLimitSteps': 0.16,
  'LmCloudSpmd2B': 2.1,
  'LmCloudSpmd32B': 32,
  'LmCloudSpmd64B': 64.5,
  'LmCloudSpmd128B': 129,
  'LmCloudSpmd256B': 258,
  'LmCloudSpmd512B': 514,
  'LmCloudSpmd1024B': 1030,
  'LmCloudSpmdMultislice2B': 2.1,
}


def _task(name: str):
  return experiment_registry.find(f'lm_cloud.{name}', SourceOptions()).task()


@pytest.mark.parametrize('name', _BILLIONS)
def test_number_of_parameters(name):
  model = _task(name).model.Instantiate()
  row = jax.ShapeDtypeStruct([1, 8], 'int32')
  weights = jax.ShapeDtypeStruct([1, 8], 'float32')
  batch = NestedMap(
    ids=row, labels=row, segment_ids=row, segment_pos=row, paddings=weights
  )
  batch.weights = weights
  variables = jax.eval_shape(
    lambda key, batch: model.init({base_layer.PARAMS: key}, batch),
    jax.random.key(0),
    batch,
  )
  sizes = [x.size for x in jax.tree.leaves(variables[base_layer.PARAMS])]
  assert math.isclose(sum(sizes) / 1e9, _BILLIONS[name], rel_tol=0.02)


def test_the_command_of_the_page_trains(tmp_path):
  (flags,) = re.findall(
    r'^python -m pax_compat.main (--exp=\S*LmCloudSpmdTest) .*? (--set=\S+)$',
    _PAGE.read_text('utf-8'),
    re.M,
  )
  done = trainer_runs.main(
    *flags,
    f'--job_log_dir={tmp_path}',
    '--attr=MAX_SEQ_LEN=16',
    '--attr=VOCAB_SIZE=64',
    '--set=task.train.summary_interval_steps=1',
    '--set=task.train.learner.optimizer.lr_schedule.warmup_steps=5',
  )
  assert done.returncode == 0, done.stderr
  assert 'tep 20/20' in done.stdout
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  losses = [
    record['value']
    for record in map(json.loads, lines)
    if record['name'] == 'total_loss' and record['split'] == 'train'
  ]
  assert len(losses) == 20 and losses[-1] < losses[0]


def test_experiments_can_change_their_datasets():
  class Changed(lm_cloud.SyntheticDataset):
    PERCORE_BATCH_SIZE = 2

    def task(self):
      return None

    def _dataset_common(self, is_training):
      return super()._dataset_common(is_training).set(seq_len=5)

  train, dev = Changed().datasets()
  assert (train.seq_len, dev.seq_len) == (5, 5)
  assert (train.is_training, dev.is_training) == (True, False)
