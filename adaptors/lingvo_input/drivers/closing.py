"""Closes in a separate thread what may block forever.

Such as the reader of a damaged file. Callers wait for a limited time. The
garbage collector does not wait at all: it runs in any thread, which may hold a
lock that the reader needs in order to end.
"""

import contextlib
import queue
import threading
from collections.abc import Callable

from absl import logging

_SECONDS_TO_CLOSE = 60.0


class _Task:
  """Something to close.

  Attributes:
    close: the function to call.
    done: set when it has returned.
    is_late: whether another thread has taken over the queue.
  """

  def __init__(self, close: Callable[[], None]):
    """Schedules nothing yet."""
    self.close = close
    self.done = threading.Event()
    self.is_late = False


# The only kind of queue that the garbage collector may use.
_pending: queue.SimpleQueue[_Task] = queue.SimpleQueue()
_lock = threading.Lock()
_has_thread = False


def prepare():
  """Starts the thread, unless there is one. `soon` needs it."""
  global _has_thread
  with _lock:
    if not _has_thread:
      _start_thread()
      _has_thread = True


def soon(close: Callable[[], None]):
  """Schedules a call of `close`; safe within the garbage collector."""
  _pending.put(_Task(close))


def in_time(name: str, close: Callable[[], None]):
  """Schedules a call of `close` and waits for it, for a limited time.

  Args:
    name: of what is closed, for messages.
    close: may still run when this has returned.
  """
  prepare()
  task = _Task(close)
  _pending.put(task)
  if task.done.wait(_SECONDS_TO_CLOSE):
    return
  logging.warning(
    '%s could not be closed within %d seconds; its reader may wait forever'
    ' after a damaged record. It stays open',
    name,
    _SECONDS_TO_CLOSE,
  )
  # The next tasks must not wait behind it. The interpreter cannot start a
  # thread while it exits.
  task.is_late = True
  with contextlib.suppress(RuntimeError):
    _start_thread()


def _start_thread():
  threading.Thread(target=_run, name='closes inputs', daemon=True).start()


def _run():
  is_late = False
  while not is_late:
    is_late = _close_next()


def _close_next() -> bool:
  """Runs the next task; returns whether it took too long."""
  task = _pending.get()
  try:
    task.close()
  except Exception:  # noqa: BLE001 (the next tasks must run)
    logging.exception('an input could not be closed')
  finally:
    task.done.set()
  return task.is_late
