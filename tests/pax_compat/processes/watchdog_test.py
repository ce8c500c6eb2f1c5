"""Tests of the watchdog, with limits of less than a second."""

import itertools
import math
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from pax_compat.processes import process_failures, watchdog
from tests.pax_compat import launching

LIMIT = 0.4


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
  monkeypatch.setattr(watchdog, '_SECONDS_TO_LOOK', 0.01)
  # A busy machine is not silent for longer than it seems.
  monkeypatch.setattr(watchdog, '_LONGEST_LOOK', 0.05)


class Ends:
  """Stands for the end of the process."""

  def __init__(self):
    self.texts = []
    self.event = threading.Event()

  def __call__(self, text):
    self.texts.append(text)
    self.event.set()


def hang_in_a_function(until: threading.Event):
  assert until.wait(60)


def _idle_for(seconds: float):
  time.sleep(seconds)


def test_work_that_hangs_is_reported_and_ended(caplog):
  ends, finished = Ends(), []
  made = watchdog.Watchdog(LIMIT, end=ends, at_end=lambda: finished.append(1))
  with made:
    made.alive('step %d ends', 4)
    made.alive('step %d begins', 5)
    hang_in_a_function(ends.event)
  [text] = ends.texts
  assert 'since "step 5 begins" (--step_timeout_minutes)' in text
  assert 'the same command continues from the last checkpoint' in text
  assert finished == [1]
  warning, error = caplog.records
  assert (warning.levelname, error.levelname) == ('WARNING', 'ERROR')
  assert 'the process ends (--step_timeout_minutes)' in warning.getMessage()
  for record in (warning, error):
    lines = record.getMessage().splitlines()
    assert lines[1] == 'the last signs: step 4 ends; step 5 begins'
    assert lines[2] == 'thread MainThread:'
    assert 'in hang_in_a_function: assert until.wait(60)' in record.getMessage()
  # A warning shows the innermost frames only.
  assert 'in _watch:' not in error.getMessage()
  assert len(error.getMessage()) > len(warning.getMessage())


def test_without_a_limit_it_warns_ever_less(caplog, monkeypatch):
  monkeypatch.setattr(watchdog, '_SECONDS_TO_REPORT', 0.1)
  seconds = []

  class Recording(watchdog.Watchdog):
    def _warn(self, silent):
      super()._warn(silent)
      seconds.append(silent)

  with Recording() as made:
    made.alive('the step begins')
    deadline = time.monotonic() + 60
    while len(seconds) < 3 and time.monotonic() < deadline:
      time.sleep(0.01)
  texts = [record.getMessage() for record in caplog.records]
  assert len(texts) == 3
  assert all('no sign of life for' in text for text in texts)
  assert not any('the process ends' in text for text in texts)
  assert 0.1 <= seconds[0] < 0.2
  assert [b >= 2 * a for a, b in itertools.pairwise(seconds)] == [True, True]


def test_signs_of_life_and_their_absence_before_the_first():
  ends = Ends()
  with watchdog.Watchdog(LIMIT, end=ends) as made:
    _idle_for(2 * LIMIT)  # Nothing has begun.
    for step in range(20):
      made.alive('step %d begins', step)
      _idle_for(0.1 * LIMIT)
  assert not ends.texts


def test_a_longer_limit():
  ends = Ends()
  with watchdog.Watchdog(LIMIT, end=ends) as made:
    with made.longer('the save'):
      _idle_for(2 * LIMIT)
    with made.longer('another save', LIMIT):
      _idle_for(1.2 * LIMIT)
    assert not ends.texts
    began = time.monotonic()
    with made.longer('the last save', 1.0):
      hang_in_a_function(ends.event)
    assert time.monotonic() - began > LIMIT + 0.9
  assert 'since "the last save begins"' in ends.texts[0]


def test_compiling_is_not_watched():
  """Each program takes longer to compile, until one exceeds the limit."""
  ends = Ends()
  limit = 0.2
  with watchdog.Watchdog(limit, end=ends) as made:
    for size in (400, 1600):
      new = time.time() % 1000  # So that no cache has the program.

      def sort(x, size=size, new=new):
        x = x * new
        for i in range(size):
          x = jnp.sort(jnp.sin(x * i)) if i % 10 == 0 else jnp.sin(x * i)
        return x

      with made.longer('tracing'):
        lowered = jax.jit(sort).lower(jnp.ones(64))
      began = time.monotonic()
      lowered.compile()
      if time.monotonic() - began > 3 * limit:
        break
    else:
      pytest.fail('nothing took long to compile')
    assert not ends.texts
    hang_in_a_function(ends.event)


def test_a_suspended_process_is_not_silent(monkeypatch):
  """Which sees the clock jump."""
  jump = 0.0
  now = time.monotonic
  monkeypatch.setattr(watchdog.time, 'monotonic', lambda: now() + jump)
  ends = Ends()
  with watchdog.Watchdog(1.0, end=ends) as made:
    made.alive('the step begins')
    time.sleep(0.1)
    jump = 1000.0
    time.sleep(0.3)
    assert not ends.texts
    hang_in_a_function(ends.event)


def test_a_report_that_hangs_does_not_delay_the_end(monkeypatch):
  monkeypatch.setattr(watchdog, '_SECONDS_TO_WRITE', 0.1)
  ends = Ends()
  released = threading.Event()
  with watchdog.Watchdog(
    LIMIT, end=ends, at_end=lambda: released.wait(60)
  ) as m:
    m.alive('the step begins')
    hang_in_a_function(ends.event)
  assert not released.is_set()
  released.set()


def test_a_report_that_fails_does_not_prevent_the_end(capsys):
  ends = Ends()

  def fails():
    raise OSError('the disk is full')

  with watchdog.Watchdog(LIMIT, end=ends, at_end=fails) as made:
    made.alive('the step begins')
    hang_in_a_function(ends.event)
  assert "cannot report: OSError('the disk is full')" in capsys.readouterr().err


def test_a_warning_leaves_out_threads_that_wait_for_work(caplog):
  ends, over = Ends(), threading.Event()
  threads = [
    threading.Thread(target=over.wait, name='waits for work'),
    threading.Thread(target=_works_until, args=(over,), name='works'),
  ]
  for thread in threads:
    thread.start()
  with watchdog.Watchdog(LIMIT, end=ends) as made:
    made.alive('the step begins')
    hang_in_a_function(ends.event)
  over.set()
  for thread in threads:
    thread.join()
  warning, error = (record.getMessage() for record in caplog.records)
  assert 'thread works:' in warning and 'thread works:' in error
  assert 'thread waits for work:' not in warning
  assert 'thread waits for work:' in error
  assert 'thread watchdog' not in error


def _works_until(over: threading.Event):
  while not over.is_set():
    time.sleep(0.001)


@pytest.mark.parametrize(
  ('processes', 'seconds', 'input_seconds', 'limit'),
  [
    (1, 60, 600, 60),
    (1, None, 600, math.inf),
    (2, 600, 60, 610),
    (2, 60, 600, 610),
    (2, 60, None, math.inf),
    (2, None, 600, math.inf),
  ],
)
def test_limits(monkeypatch, processes, seconds, input_seconds, limit):
  monkeypatch.setattr(jax, 'process_count', lambda: processes)
  with watchdog.watching(seconds, input_seconds=input_seconds) as made:
    assert watchdog.current() is made
    assert made._limit == limit
  assert watchdog.current() is not made
  watchdog.current().alive('nobody looks')


def hang_in_a_process():
  watchdog._SECONDS_TO_LOOK = 0.01
  with watchdog.watching(LIMIT, input_seconds=None) as made:
    made.alive('the step begins')
    while True:
      time.sleep(1)


def test_the_process_ends():
  done = launching.run_function(hang_in_a_process)
  assert done.returncode == 1
  assert 'in hang_in_a_process: time.sleep(1)' in done.stderr
  last = done.stderr.splitlines()[-1]
  assert last.startswith('error: no sign of life for 0 seconds since "the step')


def end_although_nobody_reads():
  process_failures._SECONDS_TO_END = 0.2
  process_failures.print = lambda *unused, **more: time.sleep(60)
  process_failures.end('hangs', status=3)


def test_the_end_does_not_wait_for_a_reader():
  done = launching.run_function(end_although_nobody_reads)
  assert done.returncode == 3, done.stderr
