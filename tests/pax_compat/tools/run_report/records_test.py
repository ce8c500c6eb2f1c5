"""Tests of what is read from the folder of a run."""

import math

import pytest

from pax_compat import errors
from pax_compat.tools.run_report import records
from tests.pax_compat.tools.run_report import folders


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs') / 'a'
  folders.make(folder)
  [found] = records.read([str(folder)])
  return found


def test_metrics_of_the_run_and_of_jobs(run):
  assert run.curves['train', 'loss'].steps == [1, 2, 3, 4]
  assert run.curves['train', 'loss'].values == [4, 2, 4 / 3, 1]
  assert run.curves['eval_test_dev', 'loss'].values == [2.5]


def test_config_parameters_and_experiment(run):
  assert (run.label, run.experiment, run.version) == ('a', 'lm.Tiny', '0.1.0')
  assert "task.name = 'tiny'\n" in run.config
  assert run.mesh == {'data': 2, 'mdl': 2}
  sizes = {
    one.path: (one.count, one.bytes, one.bytes_per_device(run.mesh))
    for one in run.parameters
  }
  assert sizes == {
    'params/w': (128, 512, 128),
    'params/e': (24, 48, 16),  # 6 rows over 4 devices: 2 on each.
    'params/b': (16, 64, 64),
    'params/s': (1, 4, 4),
  }


def test_newest_samples(run):
  [samples] = run.samples
  assert (samples.dataset, samples.step) == ('few', 10)
  assert samples.examples[0]['key'] == 'a<b>'


def test_log(run):
  assert [entry.level for entry in run.logs['log.txt']] == list('IWWE')
  assert (
    run.logs['log.txt'][-1].message == 'ended by ValueError: no data\nat all'
  )


def test_values_that_json_lacks_and_lines_of_a_run_under_way(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text(
    folders.lines({('train', 'loss'): {2: 3.0, 1: 4.0}})
    + '{"step": 2, "split": "train", "name": "loss", "value": null,'
    ' "note": "nan", "time": 1.0}\n{"step": 3, "split": "tra'
  )
  [run] = records.read([str(tmp_path)])
  curve = run.curves['train', 'loss']
  assert curve.steps == [1, 2]  # The second line of step 2 counts.
  assert curve.values[0] == 4 and math.isnan(curve.values[1])
  assert not (run.config or run.parameters or run.samples or run.logs)


def _refused(*paths) -> str:
  with pytest.raises(errors.UserError) as e:
    records.read([str(path) for path in paths])
  assert '\n' not in str(e.value)
  return str(e.value)


def test_folders_that_are_not_runs(tmp_path):
  folders.make(tmp_path / 'first_run')
  first = tmp_path / 'first_run'
  missing = _refused(tmp_path / 'fist_run')
  assert 'folder not found; did you mean: first_run?' in missing
  above = _refused(tmp_path)
  assert 'is not the folder of a run' in above and 'first_run' in above
  assert 'is given twice' in _refused(first, first)
  (first / 'metrics.jsonl').unlink()
  assert 'has no metrics.jsonl yet' in _refused(first)
  for name in ('metrics.jsonl', 'eval_metrics.jsonl'):
    (first / name).write_text('')
  assert 'has no metrics yet' in _refused(first)
