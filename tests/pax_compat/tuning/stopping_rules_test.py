"""Tests of the early stopping of trials."""

import pytest

from pax_compat import errors
from pax_compat.tasks import early_stopping
from pax_compat.tuning import records, stopping_rules
from tests.pax_compat.tuning import fake_trials

_EVAL = early_stopping.RunningMode.EVAL


def _study(folder, stopping, losses=(), **settings):
  """Writes a study whose trials had the losses."""
  folder.mkdir(exist_ok=True)
  plan = fake_trials.plan(None, stopping=stopping, **settings)
  records.write_study(folder, plan.settings, None, records.RUNNING)
  for number, values in enumerate(losses, 1):
    fake_trials.write_metrics(records.folder_of(folder, number), values)
    records.TrialsFile(folder).write(
      records.Trial(number=number, values={}, status=records.DONE)
    )


def _stops(study, losses, *, number=9, is_last=False, own=None, name='loss'):
  """Returns whether a trial stops after the last of its losses."""
  folder = records.folder_of(study, number)
  fake_trials.write_metrics(folder, losses[:-1])
  stopping = stopping_rules.in_trial(str(study))(own)
  metrics = {f'eval_dev/{name}': losses[-1], 'train/loss': 0.0}
  step = 5 * len(losses)
  return stopping(metrics, _EVAL, step, is_last, folder / 'checkpoints')


def test_median(tmp_path):
  rule = records.Stopping(rule='median', min_trials=3, min_steps=10)
  others = [[5.0, 1.0], [4.0, 2.0], [3.0, 3.0]]
  _study(tmp_path, rule, others[:2])
  assert not _stops(tmp_path, [9.0, 9.0])  # Too few others.
  _study(tmp_path, rule, others)
  assert not _stops(tmp_path, [9.0])  # Too few steps.
  assert not _stops(tmp_path, [9.0, 2.0])  # As the median.
  assert not _stops(tmp_path, [1.5, 9.0])  # It was better.
  assert not _stops(tmp_path, [9.0, 2.1], is_last=True)
  assert _stops(tmp_path, [9.0, 2.1])
  found = stopping_rules.stopped(records.folder_of(tmp_path, 9))
  assert found == {
    'step': 10,
    'reason': 'eval_dev/loss is 2.1 after step 10, worse than the median 2 of 3'
    ' trials',
  }
  assert not _stops(tmp_path, [1.9, float('nan')], number=8)
  assert _stops(tmp_path, [float('nan')] * 2, number=7)


def test_median_of_what_is_to_be_large(tmp_path):
  rule = records.Stopping(rule='median', min_trials=1)
  _study(tmp_path, rule, [[0.5]], goal='max')
  assert _stops(tmp_path, [0.4])
  assert not _stops(tmp_path, [0.6], number=8)


def test_limits_decide_once_each(tmp_path):
  rule = records.Stopping(rule='value', step_values=((5, 4.0), (15, 2.0)))
  _study(tmp_path, rule)
  assert _stops(tmp_path, [4.1])
  assert not _stops(tmp_path, [3.9, 5.0], number=2)
  assert _stops(tmp_path, [3.9, 5.0, 2.1], number=3)
  assert not _stops(tmp_path, [3.9, 5.0, 1.9], number=4)


def test_own_function_of_the_task(tmp_path):
  _study(tmp_path, records.Stopping())
  assert not _stops(tmp_path, [1.0])
  assert _stops(tmp_path, [1.0], own=lambda *args: True)


def test_a_metric_that_does_not_exist_is_an_error_at_once(tmp_path):
  _study(tmp_path, records.Stopping())
  with pytest.raises(errors.UserError, match='lack this metric; did you mean'):
    _stops(tmp_path, [1.0], name='los')
  _study(tmp_path, records.Stopping(), metric='eval_test/loss')
  assert not _stops(tmp_path, [1.0])  # It may come later.
  with pytest.raises(errors.UserError, match='They have eval_dev/loss, train/'):
    _stops(tmp_path, [1.0], is_last=True)
