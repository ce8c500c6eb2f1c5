"""The log of a run: `log.txt` in its folder, which a restart continues.

    2026-11-23T23:56:09.747Z I evaluation.py:75] evaluated 'Dev' on 15 batches
    2026-11-23T23:56:11.020Z I run] step 120/400  loss 2.476
    2026-11-23T23:56:12.310Z W saving.py:31] a save takes long

That is, the time in UTC, a level of `LEVELS`, the line of code, or `run` for
what a run prints, and the message, whose further lines are indented.
"""

import contextlib
import datetime
import logging as python_logging
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TextIO

from absl import logging

from pax_compat import errors

FILE = 'log.txt'
# Debugging, information, warnings, errors, and fatal errors.
LEVELS = 'DIWEF'

_PRINTED = 'run'
# Records that are kept until the folder of the run is known.
_MAX_EARLY = 1000
_LINE = re.compile(rf'(\S+Z) ([{LEVELS}]) ([^\]]+)\] (.*)')
_INDENT = '  '


class Entry(NamedTuple):
  """An entry of a log.

  Attributes:
    time: in UTC, ISO 8601.
    level: one letter of `LEVELS`.
    source: file and line of the code; `run` for what a run prints.
    message: lines, separated by newlines.
  """

  time: str
  level: str
  source: str
  message: str


class RunLog(python_logging.Handler):
  """Writes what is logged, within a `with` block, to the log of a run.

  It writes what absl prints on the terminal. Entries before `kept` are kept in
  memory; if it is not called, they are not written.
  """

  def __init__(self):
    super().__init__()
    self._file: TextIO | None = None
    # None when they are in the file, or nobody wants them.
    self._early: list[str] | None = []
    for one in logging.get_absl_handler().filters:
      self.addFilter(one)

  def __enter__(self) -> 'RunLog':
    python_logging.getLogger().addHandler(self)
    return self

  def __exit__(self, *unused_error):
    python_logging.getLogger().removeHandler(self)

  @contextlib.contextmanager
  def kept(
    self,
    folder: pathlib.Path,
    *,
    name: str = FILE,
    is_first_process: bool,
    expected: tuple[type[BaseException], ...] = (),
  ) -> Iterator[None]:
    """Within it, entries are written to the file, and those before it are.

    An exception that ends the block is the last entry.

    Args:
      folder: for growing files of the run, see `mirror`.
      name: of the file, which is continued.
      is_first_process: of several processes; others do not write.
      expected: exceptions that are not errors.
    """
    try:
      self._begin(folder / name if is_first_process else None)
      yield
    except expected as e:
      self.print_line(str(e))
      raise
    except BaseException as e:
      self._write(_now(), 'E', _PRINTED, f'ended by {errors.one_line(e)}')
      raise
    finally:
      with self.lock:
        file, self._file = self._file, None
        if file is not None:
          file.close()

  def printing(self, print_line: Callable[[str], None]):
    """Returns a function that prints a line, and writes it to the log."""

    def both(line: str):
      print_line(line)
      # A line that is printed by logging has an entry already.
      if print_line is not logging.info:
        self.print_line(line)

    return both

  def print_line(self, line: str):
    """Writes a line that the run prints."""
    self._write(_now(), 'I', _PRINTED, line)

  def emit(self, record: python_logging.LogRecord):
    """Writes a record of `logging`, whose errors do not end a run."""
    try:
      self._write(
        datetime.datetime.fromtimestamp(record.created, datetime.UTC),
        _level(record.levelno),
        f'{record.filename}:{record.lineno}',
        record.getMessage(),
      )
    except Exception:  # noqa: BLE001 (such as arguments that do not fit)
      self.handleError(record)

  def _begin(self, path: pathlib.Path | None):
    with self.lock:
      early, self._early = self._early, None
      if path is None:
        return
      try:
        self._file = open(path, 'a', encoding='utf-8', errors='replace')
      except OSError as e:
        logging.warning('the log of the run cannot be written: %s', e)
        return
      self._write_lines(''.join(early or ()))

  def _write(
    self, time: datetime.datetime, level: str, source: str, message: str
  ):
    stamp = time.isoformat(timespec='milliseconds').replace('+00:00', 'Z')
    indented = f'\n{_INDENT}'.join(message.splitlines())
    text = f'{stamp} {level} {source}] {indented}\n'
    with self.lock:
      if self._file is not None:
        self._write_lines(text)
      elif self._early is not None and len(self._early) < _MAX_EARLY:
        self._early.append(text)

  def _write_lines(self, text: str):
    try:
      self._file.write(text)
      self._file.flush()
    except OSError as e:  # A full disk does not end a run.
      file, self._file = self._file, None
      with contextlib.suppress(OSError):
        file.close()
      logging.warning('the log of the run is not written any more: %s', e)


def parse(text: str) -> list[Entry]:
  r"""Returns the entries of a log.

  >>> text = '2026-11-23T23:56:09.747Z W a.py:7] slow\n  disk\n'
  >>> [(e.level, e.message) for e in parse(text)]
  [('W', 'slow\ndisk')]

  Args:
    text: of the file; lines that are not of a log are ignored.
  """
  entries: list[Entry] = []
  for line in text.splitlines():
    if found := _LINE.fullmatch(line):
      entries.append(Entry(*found.groups()))
    elif entries and line.startswith(_INDENT):
      message = f'{entries[-1].message}\n{line.removeprefix(_INDENT)}'
      entries[-1] = entries[-1]._replace(message=message)
  return entries


def _now() -> datetime.datetime:
  return datetime.datetime.now(datetime.UTC)


def _level(number: int) -> str:
  limits = (
    (python_logging.CRITICAL, 'F'),
    (python_logging.ERROR, 'E'),
    (python_logging.WARNING, 'W'),
    (python_logging.INFO, 'I'),
  )
  return next((letter for limit, letter in limits if number >= limit), 'D')
