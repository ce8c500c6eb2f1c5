"""Jobs of `--mode` that follow the run of a bridged task."""

import json

import numpy as np

from adaptors.bridge import task as bridge_task
from pax_compat import base_experiment, base_input
from pax_compat.experiments import resolved
from pax_compat.input_core import example_rows
from pax_compat.jobs import job, job_options
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import run
from tests.adaptors.bridge import small_task


class Rows(base_input.BaseInput):
  """The batch of the small task, again and again.

  Attributes:
    end: how many batches there are; None for no end.
  """

  end: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._read = 0

  def get_next(self):
    if self._read == self.end:
      raise StopIteration
    self._read += 1
    batch = small_task.batch()
    return NestedMap(
      **batch | {'x': batch['x'] * self._read},
      eval_sample_weights=np.ones(2, np.float32),
    )

  def reset(self):
    self._read = 0


class Means(base_experiment.BaseExperiment):
  """The small task that decodes, bridged."""

  def task(self):
    task = bridge_task.bridge_task(small_task.means(), 'means').config.clone()
    task.train.set(
      num_train_steps=4,
      save_interval_steps=2,
      eval_interval_steps=2,
      eval_skip_train=True,
      decode_interval_steps=2,
    )
    return task

  def datasets(self):
    return [
      Rows.config(name='train', is_training=True),
      Rows.config(name='dev', end=2, reset_for_eval=True),
    ]

  def decode_datasets(self):
    return [Rows.config(name='few', end=1, reset_for_eval=True)]


def _values(path, split):
  found = map(json.loads, path.read_text().splitlines())
  return {
    (x['step'], x['name']): x['value'] for x in found if x['split'] == split
  }


def test_jobs_measure_a_bridged_run_as_its_training_does(tmp_path):
  experiment = resolved.resolve(Means(), name='means')
  run.train(experiment, job_log_dir=str(tmp_path), print_line=print)
  decoded = tmp_path / 'decode_out' / 'few'
  written = {file.name: file.read_text() for file in decoded.iterdir()}
  for file in decoded.iterdir():
    file.unlink()
  for mode in ('eval', 'decode'):
    job.run(
      experiment,
      job_log_dir=str(tmp_path),
      job=job_options.JobOptions(mode=mode),
      print_line=print,
    )
  for kind, name in (('eval', 'dev'), ('decode', 'few')):
    own = _values(tmp_path / f'{kind}_metrics.jsonl', f'{kind}_test_{name}')
    wanted = _values(tmp_path / 'metrics.jsonl', f'{kind}_{name}')
    assert own == wanted and {step for step, _ in own} == {2, 4}
  assert written == {file.name: file.read_text() for file in decoded.iterdir()}
  assert len(written) == 2


class Padded(Rows):
  """Has a padding row, with other numbers, at the end of each batch."""

  def get_next(self):
    batch = super().get_next()
    marked = NestedMap(batch, paddings=np.zeros([2, 3], np.float32))
    return example_rows.pad_batch(marked, real=2, rows=3)


class Evaluated(Means):
  """Evaluates rows with padding rows, which the task's loss counts."""

  def datasets(self):
    train, dev = super().datasets()
    padded = Padded.config(name='padded', end=2, reset_for_eval=True)
    return [train, dev, padded]


def test_padding_rows_do_not_count_though_the_task_counts_all_rows(tmp_path):
  experiment = resolved.resolve(Evaluated(), name='means')
  run.train(experiment, job_log_dir=str(tmp_path), print_line=print)
  path = tmp_path / 'metrics.jsonl'
  dev, padded = _values(path, 'eval_dev'), _values(path, 'eval_padded')
  assert padded[4, 'loss'] == dev[4, 'loss']
