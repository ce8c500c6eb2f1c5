"""Prefetching: a thread reads batches and sends them to the devices."""

import contextlib
import contextvars
import dataclasses
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

from pax_compat import errors
from pax_compat.config_core import context_values
from pax_compat.processes import watchdog
from pax_compat.trainer import stopping
from pax_compat.trainer.feeding.pipeline import DeviceBatch, Pipeline

_SECONDS_TO_A_SIGNAL = 1.0
_SECONDS_TO_COMPLAINT = 10.0
_SECONDS_TO_LEAVE = 300.0
# A thread mostly ends by itself within this time.
_SECONDS_TO_INTERRUPT = 0.5
# How long a batch is awaited until the log says so; then after twice as long.
_SECONDS_TO_REPORT = 60.0
# How many frames of a thread the log shows.
_MAX_FRAMES = 8

# How long a batch is awaited until that is an error, in seconds.
_patience = contextvars.ContextVar('patience', default=3600.0)


def patience(seconds: float | None) -> contextlib.AbstractContextManager:
  """Within it, a batch is awaited this long at most; None for no limit."""
  return context_values.set_within(
    _patience, math.inf if seconds is None else seconds
  )


class Prefetcher:
  """Iterates over the batches of a pipeline, a few of which are read ahead.

  An error of the pipeline is raised in the iterating thread, with its own
  traceback. `close` (or the end of a `with` block) stops the thread; the input
  stays open.
  """

  def __init__(
    self,
    pipeline: Pipeline,
    *,
    ahead: int = 2,
    max_batches: int | None = None,
    stop: stopping.Stop = stopping.NEVER,
    check: Callable[[], object] = lambda: None,
    interrupt: Callable[[], object] = lambda: None,
  ):
    """Starts to read.

    Args:
      pipeline: the stages of a batch; the thread runs them.
      ahead: how many batches may wait, at most.
      max_batches: how many batches are read at most; None for no limit.
      stop: called while a batch is awaited; if it returns True, `Interrupted`
        is raised, and the batch is still to come.
      check: raises if a batch that is awaited cannot come.
      interrupt: ends a read that waits for other processes.
    """
    self._pipeline = pipeline
    self._max_batches = max_batches
    self._stop_asked = stop
    self._check = check
    self._interrupt = interrupt
    self._seconds_to_leave = _SECONDS_TO_LEAVE
    self._queue = queue.Queue(maxsize=ahead)
    self._stop = threading.Event()
    self._ended = False
    self._peeked: DeviceBatch | None = None
    self._thread = threading.Thread(
      target=self._read, name='prefetcher', daemon=True
    )
    self._thread.start()

  def __enter__(self) -> 'Prefetcher':
    return self

  def __exit__(self, *unused_error):
    self.close()

  def __iter__(self) -> Iterator[DeviceBatch]:
    while True:
      device_batch = self._take() if self._peeked is None else self._peeked
      self._peeked = None
      if device_batch is None:
        return
      yield device_batch

  def peek(self) -> DeviceBatch | None:
    """Returns the batch that the iteration yields next, None at the end."""
    if self._peeked is None:
      self._peeked = self._take()
    if self._peeked is not None:
      # The caller has waited for it, so the train step will not.
      self._peeked = dataclasses.replace(self._peeked, wait_seconds=0.0)
    return self._peeked

  def _take(self) -> DeviceBatch | None:
    if self._ended:
      return None
    start = time.monotonic()
    item = self._next_item(start)
    wait = time.monotonic() - start
    if isinstance(item, DeviceBatch):
      return dataclasses.replace(item, wait_seconds=wait)
    self._ended = True
    if isinstance(item, BaseException):
      raise item
    return None

  def _next_item(self, began: float) -> DeviceBatch | BaseException | None:
    report_at = began + _SECONDS_TO_REPORT
    while True:
      # Python calls a signal's handler between two bytecodes of this thread,
      # so a wait without a timeout would delay it until the batch is there.
      try:
        return self._queue.get(timeout=_SECONDS_TO_A_SIGNAL)
      except queue.Empty:
        # This wait has a limit of its own.
        watchdog.current().alive('a batch is awaited')
        self._stop_asked.check_waiting()
        self._check_input()
      now = time.monotonic()
      if now >= began + _patience.get():
        self._give_up(now - began)
      if now >= report_at:
        logging.warning('%s', self._described(now - began))
        report_at = now + (now - began)

  def _give_up(self, seconds: float):
    self._seconds_to_leave = _SECONDS_TO_COMPLAINT
    raise errors.UserError(
      f'{self._described(seconds)}\nexpected a batch sooner; see'
      ' --input_timeout_minutes'
    )

  def _described(self, seconds: float) -> str:
    """Returns what is awaited, and where the thread is that reads it."""
    batch = self._pipeline.source.batch(self._pipeline.count + 1)
    waits = f'waiting for {batch}, for {seconds:.0f} seconds so far'
    frame = sys._current_frames().get(self._thread.ident)
    if frame is None:
      return f'{waits}; its thread has ended'
    # The first frames are those of the thread and of the pipeline.
    lines = watchdog.stack_lines(frame, _MAX_FRAMES)
    return '\n'.join([f'{waits}; its thread is at', *lines])

  def _check_input(self):
    try:
      self._check()
    except BaseException:
      self._seconds_to_leave = _SECONDS_TO_COMPLAINT
      raise

  def close(self):
    """Stops the thread and waits for it.

    The wait has a limit: a run that fails or was asked to stop ends, even if
    its input never returns the batch that it is reading.
    """
    self._stop.set()
    self._ended = True
    if self._thread.is_alive():
      with watchdog.current().longer('closing the input', _SECONDS_TO_LEAVE):
        self._await_thread()
    self._peeked = None
    with contextlib.suppress(queue.Empty):  # They hold device memory.
      while True:
        self._queue.get_nowait()

  def _await_thread(self):
    began = time.monotonic()
    complains_at = began + _SECONDS_TO_COMPLAINT
    interrupts_at = began + _SECONDS_TO_INTERRUPT
    while self._thread.is_alive():
      now = time.monotonic()
      if now > interrupts_at:
        interrupts_at = math.inf
        self._interrupt()
      if now > complains_at:
        complains_at = math.inf
        logging.warning(
          'waiting for the input to return its current batch before the run'
          ' can end; %d seconds so far',
          _SECONDS_TO_COMPLAINT,
        )
      if now > began + self._seconds_to_leave:
        logging.error(
          'the input has not returned its current batch for %d seconds; its'
          ' thread is abandoned',
          self._seconds_to_leave,
        )
        break
      try:  # Makes room for an item that the thread may be waiting to put.
        self._queue.get(timeout=0.05)
      except queue.Empty:
        pass

  def _read(self):
    count = 0
    try:
      while not self._stop.is_set():
        if self._max_batches is not None and count >= self._max_batches:
          break
        device_batch = self._pipeline.next()
        if device_batch is None:
          break
        self._queue.put(device_batch)
        del device_batch  # Its memory can be freed while the next one is read.
        count += 1
      self._queue.put(None)
    except BaseException as e:  # noqa: BLE001 (raised again by the reader)
      self._queue.put(e)
