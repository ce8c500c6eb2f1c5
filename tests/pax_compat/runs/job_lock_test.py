"""Tests of the lock of a run's folder."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from pax_compat import errors
from pax_compat.runs import job_lock
from tests.pax_compat import trainer_runs


def _write(folder, **changes):
  """Writes the lock of another process; returns its holder."""
  holder = dataclasses.replace(job_lock.Holder.this_process(), **changes)
  path = folder / job_lock.FILE
  path.write_text(json.dumps(dataclasses.asdict(holder)))
  return holder


def _assert_taken(folder):
  with job_lock.held(folder) as lock:
    lock.check()
    held = json.loads((folder / job_lock.FILE).read_text())
    assert held['pid'] == os.getpid()
  assert os.listdir(folder) == []


def test_one_process_at_a_time(tmp_path):
  with job_lock.held(tmp_path):
    before = (tmp_path / job_lock.FILE).read_bytes()
    with pytest.raises(errors.UserError) as e:
      job_lock.Lock(tmp_path).__enter__()
    assert (tmp_path / job_lock.FILE).read_bytes() == before
  mine = job_lock.Holder.this_process()
  for part in (f'{tmp_path} is in use', f'process {mine.pid} on {mine.host}'):
    assert part in str(e.value)
  _assert_taken(tmp_path)


def test_the_lock_of_a_process_that_has_ended(tmp_path, caplog):
  ended = subprocess.Popen([sys.executable, '-c', ''])
  ended.wait()
  _write(tmp_path, pid=ended.pid)
  _assert_taken(tmp_path)
  assert f'process {ended.pid} on' in caplog.text
  _write(tmp_path, started='1')  # Its number is used again.
  _assert_taken(tmp_path)
  (tmp_path / job_lock.FILE).write_text('{"pid"')
  _assert_taken(tmp_path)


@pytest.mark.parametrize('alive', [True, False])
def test_the_lock_of_another_machine(tmp_path, monkeypatch, alive):
  monkeypatch.setattr(job_lock, '_SECONDS_TO_WATCH', 0.5)
  monkeypatch.setattr(job_lock, '_SECONDS_BETWEEN_LOOKS', 0.02)
  other = dict(machine='other', host='far', token='x', since='2020-01-01')
  _write(tmp_path, **other)
  if not alive:
    _assert_taken(tmp_path)
    return
  threading.Timer(0.1, _write, [tmp_path], {**other, 'beats': 1}).start()
  with pytest.raises(errors.UserError, match=r'on far \(since 2020-01-01\)'):
    job_lock.Lock(tmp_path).__enter__()


def test_a_lock_that_another_one_took(tmp_path, monkeypatch):
  monkeypatch.setattr(job_lock, '_SECONDS_BETWEEN_BEATS', 0.02)
  with job_lock.held(tmp_path) as lock:
    deadline = time.monotonic() + 60
    while not json.loads((tmp_path / job_lock.FILE).read_text())['beats']:
      assert time.monotonic() < deadline
    lock.check()
    other = dict(token='x', host='far', since='2020-01-01')
    lost = _write(tmp_path, **other)
    while True:
      assert time.monotonic() < deadline
      try:
        lock.check()
      except errors.UserError as e:
        assert f'taken over by the training {lost}' in str(e)
        break
      _write(tmp_path, **other)
  assert (tmp_path / job_lock.FILE).exists()  # It is the other one's.


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
  def fails(*unused_args):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(job_lock.files, 'replace', fails)
  with pytest.raises(errors.UserError, match='cannot be used: training.lock'):
    job_lock.Lock(tmp_path).__enter__()
  assert not [t for t in threading.enumerate() if 'lock of' in t.name]


def test_a_second_run_of_a_folder_is_refused(tmp_path):
  folder, free = tmp_path / 'run', tmp_path / 'free'
  command = trainer_runs.flags(folder)
  settings = {'train': {'wait_at': 8, 'wait_for': str(free)}}
  with trainer_runs.start(command, output=tmp_path, settings=settings) as run:
    run.wait_until(lambda: trainer_runs.steps_saved(folder))
    done = trainer_runs.forked(*command)
    trainer_runs.assert_mistake(
      done, f'{folder} is in use', 'the training process'
    )
    assert not done.stdout
    free.touch()
    assert run.end() == 0, run.stderr
  found = trainer_runs.losses(folder)
  assert len(found) == 12
  assert not (folder / job_lock.FILE).exists()
