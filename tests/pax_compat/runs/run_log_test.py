"""Tests of the log of a run."""

import logging as python_logging
import re

import pytest
from absl import logging

from pax_compat.runs import run_log


class Stopped(Exception):  # noqa: N818
  pass


@pytest.fixture(autouse=True)
def everything_is_logged(caplog):
  caplog.set_level('INFO', logger='absl')


def _entries(path):
  entries = run_log.parse(path.read_text())
  return [(entry.level, entry.message) for entry in entries]


def test_what_is_logged_and_printed_before_and_after(tmp_path):
  printed = []
  with run_log.RunLog() as log:
    logging.info('before')
    print_line = log.printing(printed.append)
    with log.kept(tmp_path, is_first_process=True):
      print_line('step 1  loss 2.5')
      logging.warning('slow\ndisk')
      logging.debug('is not shown on the terminal')
  logging.info('after')
  assert _entries(tmp_path / 'log.txt') == [
    ('I', 'before'),
    ('I', 'step 1  loss 2.5'),
    ('W', 'slow\ndisk'),
  ]
  assert printed == ['step 1  loss 2.5']
  first, second, *_ = run_log.parse((tmp_path / 'log.txt').read_text())
  assert re.fullmatch(r'20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z', first.time)
  assert re.fullmatch(r'run_log_test\.py:\d+', first.source)
  assert second.source == 'run'


def test_a_line_that_is_printed_by_logging_is_written_once(tmp_path):
  with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=True):
    log.printing(logging.info)('step 1')
  assert _entries(tmp_path / 'log.txt') == [('I', 'step 1')]


def test_a_record_that_cannot_be_formatted_ends_nothing(tmp_path, capsys):
  library = python_logging.Logger('library')
  with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=True):
    library.addHandler(log)
    library.warning('%d files', 'three')
    library.warning('%d files', 3)
  assert _entries(tmp_path / 'log.txt') == [('W', '3 files')]
  assert "Message: '%d files'\nArguments: ('three',)" in capsys.readouterr().err


def test_a_restart_continues_the_file(tmp_path):
  for line in ('one', 'two'):
    with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=True):
      log.print_line(line)
  assert [message for _, message in _entries(tmp_path / 'log.txt')] == [
    'one',
    'two',
  ]


@pytest.mark.parametrize(
  ('error', 'last'),
  [
    (Stopped('stopped after step 3'), ('I', 'stopped after step 3')),
    (ValueError('no data'), ('E', 'ended by ValueError: no data')),
    (KeyboardInterrupt('^C'), ('E', 'ended by KeyboardInterrupt: ^C')),
  ],
)
def test_what_ends_a_run_is_its_last_entry(tmp_path, error, last):
  with pytest.raises(type(error)), run_log.RunLog() as log:
    with log.kept(tmp_path, is_first_process=True, expected=(Stopped,)):
      raise error
  assert _entries(tmp_path / 'log.txt') == [last]


def test_other_processes_write_nothing(tmp_path):
  with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=False):
    log.print_line('mine')
  assert not list(tmp_path.iterdir())


def test_a_run_goes_on_without_its_log(tmp_path, caplog):
  (tmp_path / 'log.txt').mkdir()
  with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=True):
    log.print_line('one')
  assert 'the log of the run cannot be written' in caplog.text


def test_a_full_disk_ends_the_log_only(tmp_path, caplog):
  (tmp_path / 'log.txt').symlink_to('/dev/full')
  with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=True):
    log.print_line('one')
    log.print_line('two')
  [record] = caplog.records
  assert 'the log of the run is not written any more' in record.message


def test_the_terminals_filters_apply(tmp_path):
  def drops(record):
    return 'verbose' not in record.getMessage()

  handler = logging.get_absl_handler()
  handler.addFilter(drops)
  try:
    with run_log.RunLog() as log, log.kept(tmp_path, is_first_process=True):
      python_logging.getLogger('library').warning('verbose')
      logging.error('mine')
  finally:
    handler.removeFilter(drops)
  assert _entries(tmp_path / 'log.txt') == [('E', 'mine')]


def test_other_lines_are_ignored():
  assert run_log.parse('no log\n  indented\n\n') == []
