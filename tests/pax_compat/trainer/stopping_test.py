"""Tests of requests to stop, in one process; run_test has several."""

import os
import shutil
import signal
import threading

import jax
import pytest

from pax_compat.trainer import loop, stopping
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines


@pytest.fixture
def usual():
  """Returns the list to which the usual handler of SIGTERM adds the signals."""
  got = []
  handlers = {
    signal.SIGTERM: lambda number, frame: got.append(number),
    # Ignored, where the tests were started in the background.
    signal.SIGINT: signal.default_int_handler,
  }
  before = {n: signal.signal(n, handler) for n, handler in handlers.items()}
  yield got
  for number, handler in before.items():
    signal.signal(number, handler)


def _send(number=signal.SIGTERM):
  os.kill(os.getpid(), number)


def test_the_first_signal_is_a_request_and_the_second_has_its_usual_effect(
  usual,
):
  with stopping.Stop() as stop:
    assert not stop.is_asked()
    stop.check()
    _send()
    assert stop.is_asked() and stop.number == signal.SIGTERM
    for check in (stop.check, stop.check_waiting):
      with pytest.raises(stopping.Interrupted):
        check()
    assert not usual
    _send()
    assert usual == [signal.SIGTERM]
    # The other signal is one of its own, and no longer the first.
    _send(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      _send(signal.SIGINT)
    assert stop.number == signal.SIGTERM
  _send()
  assert len(usual) == 2
  assert not stopping.NEVER.is_asked()


def _handlers():
  return [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]


def test_signals_are_left_to_the_main_thread():
  def enter():
    with stopping.Stop() as stop:
      found.append((stop.is_asked(), _handlers()))

  found = []
  thread = threading.Thread(target=enter)
  thread.start()
  thread.join()
  assert found == [(False, _handlers())]


def test_signals_are_not_handled_if_processes_cannot_agree(usual, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  warned = []
  monkeypatch.setattr(
    stopping.logging, 'warning', lambda text, *args: warned.append(text % args)
  )
  with stopping.Stop() as stop:
    _send()
    assert not stop.is_asked()
    stop.check_waiting()
  assert usual == [signal.SIGTERM]
  [line] = warned
  assert line.startswith('SIGTERM and SIGINT are not handled')


class StopsRun(lines.Rows):
  """Has the process get a SIGTERM with its second batch."""

  def get_next(self):
    if self.read == 1:
      _send()
    return super().get_next()


class Stopped(lines.Lines):
  """Is stopped when it reads a dataset.

  Attributes:
    stopped_in: the name of the dataset; None for none.
  """

  stopped_in = None

  def datasets(self):
    return [*map(self._stops, super().datasets())]

  def decode_datasets(self):
    return [*map(self._stops, super().decode_datasets())]

  def _stops(self, data):
    if data.name != self.stopped_in:
      return data
    return StopsRun.config(name=data.name, end=10, reset_for_eval=True)


def _train(folder, stopped_in=None, early_stopping_fn=None):
  settings = dict(eval_interval_steps=2, decode_interval_steps=4)
  task = lines.task(num_train_steps=4, **settings)
  task.early_stopping_fn = early_stopping_fn
  experiment = Stopped(task)
  experiment.stopped_in = stopped_in
  if stopped_in is None:
    experiment.train(folder)
  else:
    with pytest.raises(loop.Stopped, match=r'^stopped after step \d, which is'):
      experiment.train(folder)
  return experiment.printed


def _measured(folder):
  """Returns the steps of evaluations; none of them is repeated."""
  return sorted(
    (step, split)
    for step, split, name in trainer_runs.metrics(folder)
    if name in ('loss', 'decode_metrics/num_decoded') and split != 'train'
  )


def test_a_run_that_is_stopped_during_an_evaluation(tmp_path):
  # First in an evaluation between two steps, then in the decoding at the end.
  _train(tmp_path, 'dev')
  assert trainer_runs.steps_saved(tmp_path)[-1] == 2
  assert _measured(tmp_path) == [(2, 'eval_train')]
  early = shutil.copytree(tmp_path, tmp_path.with_name('early'))
  _train(tmp_path, 'few')
  assert trainer_runs.steps_saved(tmp_path)[-1] == 4
  assert 'decode_few' not in dict(map(reversed, _measured(tmp_path)))
  # What was left out is made up for, once.
  printed = _train(tmp_path)
  assert printed[0] == 'continues from the checkpoint of step 4'
  assert _measured(tmp_path) == [
    (2, 'eval_dev'),
    (2, 'eval_train'),
    (4, 'decode_few'),
    (4, 'eval_dev'),
    (4, 'eval_train'),
  ]
  [line] = _train(tmp_path)
  assert line.startswith('all 4 steps are done already; nothing to train. ')
  # What is made up for may end the run.
  for expected in (
    'stops early after step 2, because',
    'the run was stopped early',
  ):
    printed = _train(early, early_stopping_fn=lambda *args: True)
    assert printed[-1].startswith(expected)
