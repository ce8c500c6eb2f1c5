"""Tests of requests to stop, in one process; run_test has several."""

import os
import shutil
import signal
import threading
import time

import jax
import orbax.checkpoint as ocp
import pytest

from pax_compat import base_input
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


def test_a_signal_that_comes_twice_at_once_is_one(usual):
  with stopping.Stop() as stop:
    again = threading.Timer(0.03, _send)
    again.start()
    _send()
    again.join()
    assert stop.is_asked()
    assert not usual
    _send()
  assert usual == [signal.SIGTERM]


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


class WaitsForSigterm(lines.Rows):
  """Has a state. A batch comes when the run has stopped by SIGTERM.

  Attributes:
    waits_at: how many batches come before.
  """

  waits_at: int = 0

  def __post_init__(self):
    super().__post_init__()
    self._has_stopped = threading.Event()

  def get_next(self):
    if Unread.waits and self.read >= self.waits_at:
      # Steps are recorded one late.
      while (
        signal.getsignal(signal.SIGTERM) == Unread.usual
        or len(Unread.steps) < self.waits_at - 1
      ):
        time.sleep(0.01)
      _send()
      self._has_stopped.wait(60)
    return super().get_next()

  def interrupt(self):
    self._has_stopped.set()

  def _get_state_internal(self):
    return str(self.read).encode()

  def _set_state_internal(self, state):
    self.read = int(state)


class Recording(lines.Line):
  """Records the steps after which it is called."""

  def after_step(self):
    return lambda step, unused_metrics: Unread.steps.append(step)


class Specs(base_input.BaseInputSpecsProvider):
  def get_input_specs(self):
    return lines.rows(0)


class Unread(lines.Lines):
  """Needs no batch before its first step.

  Attributes:
    waits: whether it waits for a SIGTERM then.
    usual: the handler of that before.
    waits_at: how many batches come before.
    steps: those after which the model was called.
  """

  waits = False
  usual = None
  waits_at = 0
  steps: list[int] = []

  def datasets(self):
    train = dict(name='train', is_training=True)
    return [WaitsForSigterm.config(**train, waits_at=self.waits_at)]

  def get_input_specs_provider_params(self):
    return Specs.config()


def _train_unread(folder, ema_decay=0.0, **settings):
  settings |= dict(enable_input_checkpointing=True, enforce_input_specs=True)
  task = lines.task(**settings)
  task.train.learner.optimizer.ema_decay = ema_decay
  task.model = Recording.config()
  Unread(task).train(folder)


def _stop_unread(folder, monkeypatch, message, **settings):
  """Trains; the run is stopped before its first step."""
  with monkeypatch.context() as patched:
    patched.setattr(Unread, 'waits', True)
    patched.setattr(Unread, 'usual', signal.getsignal(signal.SIGTERM))
    with pytest.raises(loop.Stopped, match=message):
      _train_unread(folder, **settings)


def test_a_new_run_that_is_stopped_before_its_first_step(tmp_path, monkeypatch):
  stopped = '^stopped after step 0, which is not saved$'
  _stop_unread(tmp_path, monkeypatch, stopped, num_train_steps=2)
  # Without a checkpoint, which would lack the state of the input.
  assert not trainer_runs.steps_saved(tmp_path)
  _train_unread(tmp_path, num_train_steps=2)
  assert trainer_runs.steps_saved(tmp_path) == [2]


def test_a_transformed_run_that_is_stopped_before_its_first_step(
  tmp_path, monkeypatch
):
  _train_unread(tmp_path, num_train_steps=2)
  before = trainer_runs.contents(tmp_path / 'checkpoints' / '2')
  averages = {'opt_state/average/.*': ocp.Transform(use_fallback=True)}
  transformed = dict(
    num_train_steps=3, restore_transformations=averages, ema_decay=0.5
  )
  stopped = '^stopped after step 2, which is saved'
  _stop_unread(tmp_path, monkeypatch, stopped, **transformed)
  # The checkpoint is not written again, without the state of the input.
  assert trainer_runs.contents(tmp_path / 'checkpoints' / '2') == before
  _train_unread(tmp_path, **transformed)
  assert trainer_runs.steps_saved(tmp_path)[-1] == 3


def test_the_model_is_called_after_each_step_of_a_stopped_run(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(Unread, 'steps', [])
  monkeypatch.setattr(Unread, 'waits_at', 2)
  stopped = '^stopped after step 2, which is saved'
  _stop_unread(tmp_path, monkeypatch, stopped, num_train_steps=4)
  assert Unread.steps == [1, 2]
  _train_unread(tmp_path, num_train_steps=4)
  assert Unread.steps == [1, 2, 3, 4]
