"""Tests of looking for damaged records while an input is read."""

import os
import threading

import pytest

from adaptors.records import background_check
from pax_compat import errors
from tests.adaptors.lingvo_input import damaged_files


def _check(*paths) -> background_check.BackgroundCheck:
  files = [('tfrecord', str(path)) for path in paths]
  return background_check.BackgroundCheck('the input', files)


@pytest.fixture(name='is_at_work')
def _is_at_work():
  """Gives a function that says whether a check is at work.

  One does not count that an earlier test has left.
  """
  before = set(threading.enumerate())
  return lambda: any(
    thread.name == 'record check'
    for thread in set(threading.enumerate()) - before
  )


def test_the_first_damaged_record_is_told(tmp_path, log, is_at_work):
  good = damaged_files.write(tmp_path / 'good')
  bad = damaged_files.damaged(tmp_path / 'bad', 'data')
  check = _check(good, bad)
  check.raise_if_damaged()
  check.start()
  for call in (check.finish, check.raise_if_damaged, check.finish):
    with pytest.raises(errors.UserError, match=f'record 5 of {bad} .*found wh'):
      call()
  assert f'the input: record 5 of {bad} (at byte 150) does not match' in log()
  assert not is_at_work()
  check.close()


def test_files_without_damage(tmp_path, log):
  paths = [damaged_files.write(tmp_path / name) for name in 'abc']
  os.remove(paths[1])
  check = _check(*paths)
  check.start()
  check.finish()
  assert f'cannot check {paths[1]}' in log()
  check.close()


def test_it_works_a_part_of_its_time_and_ends_when_asked(tmp_path, is_at_work):
  records = [b'x' * 1000] * 100_000
  path = damaged_files.write(tmp_path / 'a', records)
  check = _check(path, damaged_files.damaged(tmp_path / 'bad', 'data'))
  check.start()
  assert is_at_work()
  check.close()
  check.raise_if_damaged()  # It did not come so far.
  assert not is_at_work()
