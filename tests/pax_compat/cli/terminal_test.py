"""Tests of what a run prints in a terminal and in a file."""

import io
import os
import sys

import pytest
from absl import logging

from pax_compat.cli import terminal
from pax_compat.metrics import progress
from tests.pax_compat import launching


class Screen(io.StringIO):
  """Standard output that may be a terminal."""

  def __init__(self, is_terminal: bool):
    super().__init__()
    self._is_terminal = is_terminal

  def isatty(self):
    return self._is_terminal

  def shown(self) -> list[str]:
    """Returns the lines, where an erased line has only what came later."""
    lines = self.getvalue().split('\n')
    return [line.rpartition('\r\x1b[K')[2] for line in lines]


def _print(screen, monkeypatch, *, quiet=False):
  monkeypatch.setattr(sys, 'stdout', screen)
  monkeypatch.setenv('COLUMNS', '20')
  with terminal.used(quiet=quiet) as used:
    used.print_line('starts')
    used.print_line(progress.ProgressLine('step 1/9  loss 2.5'))
    used.print_line(progress.ProgressLine('step 2/9  loss 1.5  3.0 steps/s'))
    used.print_line('step 2  eval dev: loss 2.0')
    used.print_line(progress.ProgressLine('step 3/9'))


def test_a_terminal_has_one_line_of_progress_below_the_others(monkeypatch):
  screen = Screen(True)
  _print(screen, monkeypatch)
  assert screen.shown() == [
    *('starts', 'step 2  eval dev: loss 2.0', 'step 3/9', ''),
  ]
  # What does not fit would be in two lines, of which one is erased.
  assert '\r\x1b[Kstep 2/9  loss 1.5 \r' in screen.getvalue()


def test_a_file_has_all_lines(monkeypatch):
  screen = Screen(False)
  _print(screen, monkeypatch)
  assert screen.getvalue().splitlines() == [
    *('starts', 'step 1/9  loss 2.5', 'step 2/9  loss 1.5  3.0 steps/s'),
    *('step 2  eval dev: loss 2.0', 'step 3/9'),
  ]


@pytest.mark.parametrize('is_terminal', [False, True])
def test_quiet(monkeypatch, is_terminal):
  screen = Screen(is_terminal)
  level = logging.get_absl_handler().level
  _print(screen, monkeypatch, quiet=True)
  assert screen.getvalue() == ''
  assert logging.get_absl_handler().level == level


def test_the_log_is_above_the_progress(monkeypatch, caplog):
  screen = Screen(True)
  monkeypatch.setattr(sys, 'stdout', screen)
  caplog.set_level('INFO', logger='absl')
  with terminal.used() as used:
    used.print_line(progress.ProgressLine('step 1/9'))
    handler = logging.get_absl_handler()
    assert handler.filter(
      logging.get_absl_logger().makeRecord(
        'absl', 20, 'x.py', 1, 'compiling', (), None
      )
    )
    screen.write('I x.py:1] compiling\n')
    logging.info('is shown by no handler here')
  assert screen.shown() == ['I x.py:1] compiling', 'step 1/9', '']


def print_to_what_fails(file):
  """Prints two lines; the standard output is `file`, or a closed terminal."""
  if file == 'terminal':
    others_end, own_end = os.openpty()
    os.dup2(own_end, sys.stdout.fileno())
    os.close(own_end)
    os.close(others_end)
  else:
    os.dup2(os.open(file, os.O_WRONLY), sys.stdout.fileno())
  with terminal.used() as used:
    used.print_line('starts')
    used.print_line('ends')
  print('the run has gone on', file=sys.stderr)


@pytest.mark.parametrize(
  ('file', 'reason'),
  [
    ('/dev/full', 'No space left on device'),
    ('terminal', 'Input/output error'),
  ],
)
def test_output_that_cannot_be_written_ends_nothing(file, reason):
  done = launching.run_function(print_to_what_fails, file)
  assert done.returncode == 0, done.stderr
  assert done.stderr.count(f'cannot be written: {reason}; the run goes on') == 1
  assert 'the run has gone on' in done.stderr
