"""Tests of which curves a report has."""

import math

import pytest

from pax_compat.tools.run_report import curves, records
from tests.pax_compat.tools.run_report import folders


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs')
  folders.make(folder / 'a')
  folders.make(folder / 'b', steps=6)
  return records.read([str(folder / 'a'), str(folder / 'b')])


def test_groups_of_metrics(runs):
  groups = curves.metric_groups(runs)
  assert list(groups) == ['model', 'throughput', 'learning', 'time_use', 'vars']
  assert groups['model'] == ['loss', 'accuracy', 'log_pplx']
  assert groups['throughput'] == ['steps_per_second', 'mfu']
  assert len(groups['vars']) == 13


def test_metrics_that_are_the_loss(runs):
  # `eval_test_dev` has the loss only.
  assert curves.equal_to_loss(runs, ['loss', 'accuracy', 'log_pplx']) == []
  for run in runs:
    del run.curves['eval_test_dev', 'loss']
  assert curves.equal_to_loss(runs, ['loss', 'accuracy', 'log_pplx']) == [
    'log_pplx'
  ]


def test_runs_have_colours_and_splits_have_dashes(runs):
  lines = curves.of_metric(runs, 'log_pplx', most=100)
  assert [line.name for line in lines] == [
    *('a train', 'a eval_dev', 'b train', 'b eval_dev'),
  ]
  assert lines[0].colour == lines[1].colour != lines[2].colour
  assert lines[0].dash == lines[2].dash == '' != lines[1].dash
  assert [line.name for line in curves.of_metric(runs[:1], 'mfu', most=9)] == [
    'train'
  ]


def test_thinned_curves_keep_extremes_and_gaps():
  values = [1.0] * 1000
  values[123], values[456], values[789] = 9.0, -9.0, math.nan
  steps, kept = curves.thinned(range(1000), values, 100)
  assert len(steps) <= 110 and steps == sorted(steps)
  assert (steps[0], steps[-1]) == (0, 999)
  by_step = dict(zip(steps, kept, strict=True))
  assert by_step[123] == 9 and by_step[456] == -9 and math.isnan(by_step[789])
  assert curves.thinned([1, 2], [3.0, 4.0], 2) == ([1, 2], [3.0, 4.0])
