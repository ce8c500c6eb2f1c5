"""Early stopping by Lingvo's rule, against Lingvo's own op."""

import json
import pathlib

import pytest

from adaptors import lingvo_runtime
from adaptors.equivalents import lingvo_early_stopping
from pax_compat import errors
from pax_compat.tasks.early_stopping import RunningMode


def _stop(**fields):
  return lingvo_early_stopping.EarlyStop(
    **{'split': 'eval_Dev', 'metric': 'loss', 'window': 20, **fields}
  )


_HISTORIES = {
  'none': [],
  'falls': [(10, 5.0), (20, 4.0), (30, 3.0)],
  'stays': [(10, 5.0), (20, 4.0), (30, 4.0), (40, 4.0)],
  'creeps': [(10, 5.0), (20, 4.0), (30, 3.9), (40, 3.8), (50, 3.7)],
  'rises': [(10, 0.5), (20, 0.6), (30, 0.6), (40, 0.7), (50, 0.65)],
  'breaks': [(10, float('nan')), (20, 4.0), (30, 3.0)],
}


@pytest.mark.parametrize('history', _HISTORIES)
@pytest.mark.parametrize('minimize', [True, False])
@pytest.mark.parametrize('tolerance', [0.0, 0.15])
def test_the_best_step_is_lingvos(tmp_path, history, minimize, tolerance):
  ops = lingvo_runtime.module('lingvo.core.ops')
  path = tmp_path / 'history.txt'
  lines = [f'{step} {value:f}\n' for step, value in _HISTORIES[history]]
  path.write_text(''.join(lines))
  expected = ops.best_step(str(path), tolerance, minimize, 'loss').numpy()
  stop = _stop(minimize=minimize, tolerance=tolerance)
  assert stop.best_step(_HISTORIES[history]) == tuple(expected)


def _write(folder: pathlib.Path, history):
  lines = [
    {'step': step, 'split': split, 'name': name, 'value': value}
    for step, loss in history
    for split, name, value in (
      ('train', 'loss', -float(step)),
      ('eval_Dev', 'accuracy', float(step)),
      ('eval_Dev', 'loss', loss),
    )
  ]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (folder / 'metrics.jsonl').write_text(text)


def _asked(stop, folder, history):
  _write(folder, history)
  return stop(
    {'eval_Dev/loss': 0.0, 'train/loss': 0.0},
    RunningMode.EVAL,
    history[-1][0],
    False,
    folder / 'checkpoints',
  )


def test_a_run_ends_when_the_window_is_over(tmp_path):
  history = [(10, 5.0), (20, 4.0), (30, 4.5), (40, 4.5), (50, 4.5)]
  assert not _asked(_stop(), tmp_path, history[:4])
  assert _asked(_stop(), tmp_path, history)
  assert not _asked(_stop(min_steps=60), tmp_path, history)
  assert not _asked(_stop(window=30), tmp_path, history)


def test_an_evaluation_without_a_value(tmp_path):
  assert _asked(_stop(), tmp_path, [(10, 5.0), (20, None), (40, 6.0)])


def test_no_metrics_yet(tmp_path):
  stop = _stop()
  folder = tmp_path / 'checkpoints'
  assert not stop({}, RunningMode.DECODE, 10, False, folder)


def test_a_metric_that_is_not_there(tmp_path):
  with pytest.raises(errors.UserError, match='Did you mean|loss'):
    _asked(_stop(metric='los'), tmp_path, [(10, 5.0)])


def test_a_window_of_nothing():
  with pytest.raises(errors.UserError, match='window is 0'):
    _stop(window=0)
