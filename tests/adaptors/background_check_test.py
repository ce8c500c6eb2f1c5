"""Tests of looking for damaged records while an input is read."""

import os
import threading

import pytest

from adaptors import background_check
from pax_compat import errors
from tests.adaptors.lingvo_input import damaged_files


def _check(*paths) -> background_check.BackgroundCheck:
  files = [('tfrecord', str(path)) for path in paths]
  return background_check.BackgroundCheck('the input', files)


def _is_at_work() -> bool:
  return any(t.name == 'record check' for t in threading.enumerate())


def test_the_first_damaged_record_is_told(tmp_path, log):
  good = damaged_files.write(tmp_path / 'good')
  bad = damaged_files.damaged(tmp_path / 'bad', 'data')
  check = _check(good, bad)
  check.raise_if_damaged()
  check.start()
  for told in (check.finish, check.raise_if_damaged, check.finish):
    with pytest.raises(errors.UserError, match=f'record 5 of {bad} .*found wh'):
      told()
  assert f'the input: record 5 of {bad} (at byte 150) does not match' in log()
  assert not _is_at_work()
  check.close()


def test_files_without_damage(tmp_path, log):
  paths = [damaged_files.write(tmp_path / name) for name in 'abc']
  os.remove(paths[1])
  check = _check(*paths)
  check.start()
  check.finish()
  assert f'cannot check {paths[1]}' in log()
  check.close()


def test_it_works_a_part_of_its_time_and_ends_when_asked(tmp_path):
  records = [b'x' * 1000] * 100_000
  path = damaged_files.write(tmp_path / 'a', records)
  check = _check(path, damaged_files.damaged(tmp_path / 'bad', 'data'))
  check.start()
  assert _is_at_work()
  check.close()
  check.raise_if_damaged()  # It did not come so far.
  assert not _is_at_work()
