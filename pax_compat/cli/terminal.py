"""What a run prints: one refreshed line of progress in a terminal, or lines.

In a terminal the newest progress stays in the last line, and everything else,
what is logged included, is printed above it. In a file or a pipe all are lines.
"""

import contextlib
import logging as python_logging
import shutil
import sys
from collections.abc import Iterator

from absl import logging

from pax_compat.cli import command_line
from pax_compat.metrics import progress

# To the first column, and delete what is in the line.
_CLEAR = '\r\x1b[K'


class Terminal:
  """Prints the lines of a run."""

  def __init__(self, *, quiet: bool = False):
    """Prints nothing yet.

    Args:
      quiet: whether lines are dropped; warnings and errors are still logged.
    """
    self._quiet = quiet
    self._refreshes = not quiet and sys.stdout.isatty()
    self._shown = ''
    self._is_cleared = False

  def print_line(self, line: str):
    """Prints a line; of progress it replaces the one before."""
    if self._quiet:
      return
    if not self._refreshes:
      command_line.print_line(line)
      return
    if isinstance(line, progress.ProgressLine):
      self._shown = line
    else:
      self.clear()
      command_line.print_line(line)
    self._show()

  def clear(self):
    """Deletes the line of progress from the terminal."""
    if self._shown:
      self._write(_CLEAR)
      self._is_cleared = True

  def restore(self):
    """Prints the line of progress again, if it was deleted."""
    if self._is_cleared:
      self._show()

  def _show(self):
    """Prints the line of progress, as much of it as fits."""
    self._is_cleared = False
    if self._shown:
      columns = shutil.get_terminal_size().columns
      self._write(_CLEAR + self._shown[: columns - 1])

  def leave(self):
    """Ends the line of progress, so that what follows is below it."""
    if self._shown:
      self._write('\n')
    self._shown = ''

  def _write(self, text: str):
    try:
      sys.stdout.write(text)
      sys.stdout.flush()
    except OSError:  # The terminal was closed; the run goes on.
      self._refreshes, self._shown = False, ''


@contextlib.contextmanager
def used(*, quiet: bool = False) -> Iterator[Terminal]:
  """Within it, lines of progress and of the log do not mix.

  Args:
    quiet: whether only warnings and errors are printed.
  """
  terminal = Terminal(quiet=quiet)
  handler = logging.get_absl_handler()
  level = handler.level

  def clears(record: python_logging.LogRecord) -> bool:
    del record
    terminal.clear()
    return True

  # Handlers are called in their order: absl's, and then this one.
  after = _Shows(terminal)
  if quiet:
    handler.setLevel(python_logging.WARNING)
  handler.addFilter(clears)
  python_logging.getLogger().addHandler(after)
  try:
    yield terminal
  finally:
    python_logging.getLogger().removeHandler(after)
    handler.removeFilter(clears)
    handler.setLevel(level)
    terminal.leave()


class _Shows(python_logging.Handler):
  """Shows the progress again when a record was printed."""

  def __init__(self, terminal: Terminal):
    super().__init__()
    self._terminal = terminal

  def emit(self, record: python_logging.LogRecord):
    self._terminal.restore()
