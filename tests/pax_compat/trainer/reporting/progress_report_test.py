"""Tests of the reports of train steps."""

import re

import fiddle as fdl
import numpy as np
import pytest

from pax_compat import base_metrics, tasks_lib
from pax_compat.trainer.reporting import progress_report
from tests.pax_compat import event_files
from tests.pax_compat.trainer import lines

BOTH = pytest.mark.parametrize('asynchronous', [True, False])
LOSSES, _, _ = lines.losses(6, w=np.full(lines.DIMS, 0.5), b=0.0)


def _train(folder, **train):
  return lines.train(
    folder,
    **dict(num_train_steps=6, eval_interval_steps=0, eval_skip_train=True)
    | train,
  )


def _is_step(line):
  return re.match(r'step \d+(/6)?  loss ', line) is not None


@BOTH
def test_summaries_and_lines_have_separate_intervals(tmp_path, asynchronous):
  folder = tmp_path / 'run'
  experiment = _train(
    folder,
    summary_interval_steps=4,
    log_train_output_interval_steps=2,
    async_summary_writing=asynchronous,
  )
  assert lines.steps(folder, 'train') == [1, 4, 6]
  steps = [line.split()[1] for line in experiment.printed if _is_step(line)]
  assert steps == ['1', '2/6', '4/6', '6/6']
  found = lines.metrics(folder, 'train')
  for step in (1, 4, 6):
    np.testing.assert_allclose(found[step, 'loss'], LOSSES[step - 1], rtol=1e-5)
  # The first step is mostly compilation.
  assert (1, 'steps_per_second') not in found
  assert found[4, 'steps_per_second'] > 0


@BOTH
def test_accumulated_summaries_are_weighted_means(tmp_path, asynchronous):
  folder = tmp_path / 'run'
  _train(
    folder,
    summary_interval_steps=3,
    summary_accumulate_interval_steps=1,
    async_summary_writing=asynchronous,
  )
  found = lines.metrics(folder, 'train')
  for step, steps in ((1, [0]), (3, [1, 2]), (6, [3, 4, 5])):
    want = np.mean([LOSSES[i] for i in steps])
    np.testing.assert_allclose(found[step, 'loss'], want, rtol=1e-5)
    np.testing.assert_allclose(found[step, 'mean_square'], want, rtol=1e-5)
    # A clu metric has its own merge.
    assert found[step, 'rows'] == lines.BATCH * len(steps)


def test_only_every_second_step_is_accumulated(tmp_path):
  _train(
    tmp_path / 'run',
    summary_interval_steps=4,
    summary_accumulate_interval_steps=2,
  )
  found = lines.metrics(tmp_path / 'run', 'train')
  want = np.mean([LOSSES[1], LOSSES[3]])
  np.testing.assert_allclose(found[4, 'loss'], want, rtol=1e-5)


def test_the_metrics_of_the_task_are_used(tmp_path):
  task = lines.task(
    num_train_steps=4,
    eval_interval_steps=0,
    eval_skip_train=True,
    summary_interval_steps=4,
    summary_accumulate_interval_steps=1,
  )
  task.metrics = base_metrics.MaxMetrics.config(metric_keys=['largest'])
  lines.Lines(task).train(tmp_path / 'run')
  found = lines.metrics(tmp_path / 'run', 'train')
  names = {name for step, name in found if step == 4}
  assert {'largest', 'loss', 'rows', 'learning/lr'} <= names
  assert found[4, 'largest'] > max(LOSSES[1:4])  # of a row, not of a batch


@pytest.mark.parametrize('verbosity', [1, 3, 4])
def test_summaries_of_layers_reach_tensorboard(tmp_path, verbosity):
  task = lines.task(
    model=dict(has_summaries=True),
    num_train_steps=3,
    summary_interval_steps=2,
    eval_interval_steps=0,
  )
  task.summary_verbosity = verbosity
  lines.Lines(task).train(tmp_path)
  found = event_files.read(tmp_path / 'summaries' / 'train')
  jsonl = lines.metrics(tmp_path, 'train')
  assert ('first' in found['scalars']) == (verbosity >= 2)
  assert ('quiet' in found['scalars']) == (verbosity >= 4)
  assert ((2, 'quiet') in jsonl) == (verbosity >= 4)
  if verbosity < 2:
    assert not found['images'] and not found['histograms']
    return
  x = lines.rows(lines.BATCH).x
  np.testing.assert_allclose(jsonl[2, 'first'], x[0, 0], rtol=1e-6)
  steps = (1, 2, 3)
  assert found['texts']['words/text_summary'] == [[n, 'said'] for n in steps]
  assert found['images']['picture'] == [
    [n, lines.DIMS, lines.BATCH, 8] for n in steps
  ]
  step, low, high, count, *_ = found['histograms']['all'][1]
  assert (step, count) == (2, x.size)
  np.testing.assert_allclose([low, high], [x.min(), x.max()], rtol=1e-6)


@pytest.mark.parametrize(
  ('start', 'accumulate', 'steps'),
  [
    (0, None, [1, 4, 8, 10]),
    (5, None, [4, 6, 8, 10]),
    (0, 2, [1, 2, 4, 6, 8, 10]),
  ],
)
def test_which_steps_have_summaries(start, accumulate, steps):
  settings = tasks_lib.Train(
    num_train_steps=10,
    summary_interval_steps=4,
    summary_accumulate_interval_steps=accumulate,
  )
  found = [
    n for n in range(1, 11) if progress_report.has_summaries(settings, n, start)
  ]
  assert found == steps


def test_norms_are_means_over_what_is_accumulated(tmp_path):
  _train(
    tmp_path,
    num_train_steps=4,
    summary_interval_steps=4,
    summary_accumulate_interval_steps=2,
  )
  found = lines.metrics(tmp_path, 'train')
  b = [lines.losses(n, w=np.full(lines.DIMS, 0.5), b=0.0)[2] for n in (1, 3)]
  np.testing.assert_allclose(found[4, 'vars/b'], np.abs(b).mean(), rtol=1e-5)


@pytest.mark.parametrize('wanted', [True, False])
def test_norms_of_variables(tmp_path, wanted):
  _train(tmp_path, num_train_steps=1, variable_norm_summary=wanted)
  found = lines.metrics(tmp_path, 'train')
  norms = {name: v for (_, name), v in found.items() if 'vars/' in name}
  # The first weights are 0.5, and 0.
  assert norms == ({'vars/w': 0.5, 'vars/b': 0.0} if wanted else {})


class Measured(lines.Rows):
  def input_metrics(self):
    return {'input/skipped_records': float(len(self.name))}


class MeasuredLines(lines.Lines):
  def datasets(self):
    return [_measured(config) for config in super().datasets()]

  def decode_datasets(self):
    return [_measured(config) for config in super().decode_datasets()]


def _measured(config):
  fdl.update_callable(config, Measured)
  return config


def test_metrics_of_inputs_are_written(tmp_path):
  name = 'input/skipped_records'
  task = lines.task(num_train_steps=2, decode_interval_steps=2)
  MeasuredLines(task).train(tmp_path)
  found = lines.metrics(tmp_path, 'train')
  assert found[1, name] == found[2, name] == len('train')
  assert lines.metrics(tmp_path, 'eval_dev')[2, name] == len('dev')
  assert lines.metrics(tmp_path, 'decode_few')[2, name] == len('few')
  scalars = event_files.read(tmp_path / 'summaries' / 'train')['scalars']
  assert [value for _, value in scalars[name]] == [5, 5]


def test_a_summary_that_cannot_be_written_ends_the_run(tmp_path):
  task = lines.task(num_train_steps=50, summary_interval_steps=1)
  task.metrics = base_metrics.MeanMetrics.config(metric_keys=['x'])
  with pytest.raises(
    Exception, match="'x', which is not a metric of the model"
  ):
    lines.Lines(task).train(tmp_path / 'run')
