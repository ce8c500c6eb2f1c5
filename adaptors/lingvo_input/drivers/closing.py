"""Closes what may take for ever, such as the reader of a damaged file.

A thread does it. Who asks for it waits for a limited time. The garbage
collector does not wait at all: it is at work in any thread, which may hold a
lock that a reader's own code needs to come to its end.
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
    close: does it.
    done: set when it has returned.
    is_late: whether another thread does what comes after it.
  """

  def __init__(self, close: Callable[[], None]):
    """Asks for nothing yet."""
    self.close = close
    self.done = threading.Event()
    self.is_late = False


# Of all queues the one to which the garbage collector may add.
_asked: queue.SimpleQueue[_Task] = queue.SimpleQueue()
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
  """Has `close` called; the garbage collector may ask for it."""
  _asked.put(_Task(close))


def in_time(name: str, close: Callable[[], None]):
  """Has `close` called and waits for its end, for a limited time.

  Args:
    name: of what is closed, for messages.
    close: what it does may go on when this has returned.
  """
  prepare()
  task = _Task(close)
  _asked.put(task)
  if task.done.wait(_SECONDS_TO_CLOSE):
    return
  logging.warning(
    '%s could not be closed within %d seconds, such as where a reader waits for'
    ' ever behind a damaged record. It is left to itself',
    name,
    _SECONDS_TO_CLOSE,
  )
  # What is asked for next is not to wait behind it. The interpreter starts no
  # thread any more while it ends.
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
  """Closes what is asked for next; returns whether it has come to it late."""
  task = _asked.get()
  try:
    task.close()
  except Exception:  # noqa: BLE001 (the rest is to be closed all the same)
    logging.exception('an input could not be closed')
  finally:
    task.done.set()
  return task.is_late
