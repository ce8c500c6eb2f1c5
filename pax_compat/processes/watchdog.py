"""A watchdog for work that hangs: it warns, and then ends the process.

A step waits in native code, which Python cannot interrupt: for a device, a
collective, or a callback of the model. If that never ends, nothing else is
noticed. So the work shows signs of life, such as each step, each batch of an
evaluation and each save, and a thread looks for them once a second. If there is
none for minutes, the log says where the process is; at a limit the process
ends, and with it the other processes of the run.

Nothing is watched before the first sign. No time passes for the watchdog while
JAX compiles in any thread, and while the process is suspended. What waits for
something that has a limit of its own says so: `Watchdog.longer`.

A native function that keeps Python's lock stops the watchdog, too.
"""

import collections
import contextlib
import contextvars
import functools
import math
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator

import jax
from absl import logging

from pax_compat import errors
from pax_compat.config_core import context_values
from pax_compat.processes import process_failures

_SECONDS_TO_LOOK = 1.0
# A process that was suspended does not count for more.
_LONGEST_LOOK = 10.0
# How long without a sign until a warning; then after twice as long.
_SECONDS_TO_REPORT = 300.0
# The error of another process, such as a missing batch, is printed instead.
_SECONDS_FOR_OTHERS = 10.0
# For what is done before the end: a disk or a terminal may hang, too.
_SECONDS_TO_WRITE = 30.0
_MAX_SIGNS = 6
# How many frames of a thread a warning shows.
_MAX_FRAMES = 8
# JAX's module that compiles, by whose frames a compilation is recognized.
_COMPILER = os.path.join('jax', '_src', 'compiler.py')
# Folder of Python's library.
_LIBRARY = os.path.dirname(os.__file__)


class Watchdog:
  """Watches for signs of life within a `with` block."""

  def __init__(
    self,
    limit: float = math.inf,
    *,
    at_end: Callable[[], object] = lambda: None,
    end: Callable[[str], object] = process_failures.end,
  ):
    """Does not watch yet.

    Args:
      limit: seconds without a sign of life after which the process ends.
      at_end: is called before the process ends, when the log is written.
      end: ends the process, given the error in a few words.
    """
    self._limit = limit
    self._more = 0.0  # In addition to the limit.
    self._first_report = min(_SECONDS_TO_REPORT, limit / 2)
    self._at_end = at_end
    self._end = end
    self._signs = collections.deque(maxlen=_MAX_SIGNS)
    self._is_over = threading.Event()

  def __enter__(self) -> 'Watchdog':
    self._watched = threading.get_ident()
    self._thread = threading.Thread(
      target=self._watch, name='watchdog', daemon=True
    )
    self._thread.start()
    return self

  def __exit__(self, *unused_error):
    self._is_over.set()
    self._thread.join()

  def alive(self, text: str, *args: object):
    """Shows a sign of life; any thread may. It costs a tenth of a microsecond.

    Args:
      text: what happens now, such as 'step %d begins'.
      *args: values for its `%`; only a report formats them.
    """
    self._signs.append((text, args))

  @contextlib.contextmanager
  def longer(self, text: str, seconds: float = math.inf) -> Iterator[None]:
    """Within it, the limit is longer, as for a wait that has one of its own.

    The watched thread enters it. The beginning and the end are signs of life.

    Args:
      text: what is done, such as 'the save of step 5'.
      seconds: how much longer the limit is; infinity for no limit.
    """
    before, self._more = self._more, self._more + seconds
    self.alive('%s begins', text)
    try:
      yield
    finally:
      self.alive('%s ends', text)
      self._more = before

  def _watch(self):
    seen, silent, report_at = None, 0.0, self._first_report
    before = time.monotonic()
    while not self._is_over.wait(_SECONDS_TO_LOOK):
      now = time.monotonic()
      passed, before = min(now - before, _LONGEST_LOOK), now
      sign = self._signs[-1] if self._signs else None
      # Each sign is an object of its own.
      if sign is None or sign is not seen or _is_compiling():
        seen, silent, report_at = sign, 0.0, self._first_report
        continue
      silent += passed
      if silent >= self._limit + self._more:
        self._give_up(silent)
        return
      if silent >= report_at:
        report_at = 2 * silent
        _within(_SECONDS_TO_WRITE, functools.partial(self._warn, silent))

  def _warn(self, silent: float):
    ends = ''
    if math.isfinite(limit := self._limit + self._more):
      ends = f'; after {limit:.0f} the process ends (--step_timeout_minutes)'
    lines = [
      f'no sign of life for {silent:.0f} seconds{ends}',
      *self._described(),
      *self._stacks(only_busy=True, frames=_MAX_FRAMES),
    ]
    logging.warning('%s', '\n'.join(lines))

  def _give_up(self, silent: float):
    """Writes where all threads are, and ends the process."""
    text, args = self._signs[-1]
    brief = (
      f'no sign of life for {silent:.0f} seconds since "{text % args}"'
      ' (--step_timeout_minutes). The process ends, and the same command'
      ' continues from the last checkpoint'
    )

    def write():
      lines = [brief, *self._described(), *self._stacks(only_busy=False)]
      logging.error('%s', '\n'.join(lines))
      self._at_end()

    _within(_SECONDS_TO_WRITE, write)
    self._end(f'{brief}. Its log has the stacks of all threads')

  def _described(self) -> list[str]:
    # A wait shows the same one each second.
    signs = dict.fromkeys(text % args for text, args in self._signs.copy())
    return [f'the last signs: {"; ".join(signs)}']

  def _stacks(self, *, only_busy: bool, frames: int | None = None) -> list[str]:
    """Returns where the threads are, first the one that is watched.

    Args:
      only_busy: whether threads that wait for work are left out.
      frames: how many frames of each, the innermost ones; None for all.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = sys._current_frames()
    del found[threading.get_ident()], found[self._thread.ident]
    lines = []
    for number in sorted(found, key=lambda number: number != self._watched):
      frame = found[number]
      if only_busy and number != self._watched and _is_idle(frame):
        continue
      name = names.get(number, f'{number}, which native code has started')
      lines += [f'thread {name}:', *stack_lines(frame, frames)]
    return lines


_current: contextvars.ContextVar[Watchdog] = contextvars.ContextVar('watchdog')
_NEVER = Watchdog()


def current() -> Watchdog:
  """Returns the watchdog of the work; outside of any, one that never looks."""
  return _current.get(_NEVER)


@contextlib.contextmanager
def watching(
  seconds: float | None,
  *,
  input_seconds: float | None,
  at_end: Callable[[], object] = lambda: None,
) -> Iterator[Watchdog]:
  """Within it, `current` is a watchdog that ends this process if it hangs.

  Args:
    seconds: the limit; None for none.
    input_seconds: how long a batch is awaited, None for no limit. With several
      processes the limit is at least as long, as another process may wait for
      its batch.
    at_end: see `Watchdog`.
  """
  limit = math.inf if seconds is None else seconds
  if jax.process_count() > 1:
    awaits = math.inf if input_seconds is None else input_seconds
    limit = max(limit, awaits) + _SECONDS_FOR_OTHERS
  with (
    Watchdog(limit, at_end=at_end) as made,
    context_values.set_within(_current, made),
  ):
    yield made


def stack_lines(frame: types.FrameType, frames: int | None = None) -> list[str]:
  """Returns a line for each frame of a thread, the innermost one last.

  Args:
    frame: the innermost one.
    frames: how many, the innermost ones; None for all.
  """
  stack = traceback.extract_stack(frame)[-(frames or 0) :]
  return [f'  {f.filename}:{f.lineno} in {f.name}: {f.line}' for f in stack]


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
  """Yields a frame and its callers."""
  while frame is not None:
    yield frame
    frame = frame.f_back


def _is_idle(frame: types.FrameType) -> bool:
  """Whether a thread that Python has started waits in Python's library.

  Those of native code have callbacks of the model. Users' functions are never
  idle.
  """
  files = [f.f_code.co_filename for f in _frames(frame)]
  return (
    files[-1] == threading.__file__
    and files[0].startswith(_LIBRARY)
    and 'site-packages' not in files[0]
    and not any(map(errors.is_user_code, files))
  )


def _is_compiling() -> bool:
  """Whether JAX compiles a program, in any thread."""
  return any(
    one.f_code.co_filename.endswith(_COMPILER)
    for frame in sys._current_frames().values()
    for one in _frames(frame)
  )


def _within(seconds: float, fn: Callable[[], object]):
  """Calls a function in a thread, and waits for it no longer than that."""

  def call():
    try:
      fn()
    except Exception as e:  # noqa: BLE001 (of a disk or network; see the end)
      print(f'the watchdog cannot report: {e!r}', file=sys.stderr)

  thread = threading.Thread(target=call, name='watchdog', daemon=True)
  thread.start()
  thread.join(seconds)
