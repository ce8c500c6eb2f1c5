"""Reading ahead: batches are made and sent to the devices by a thread."""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import stopping

_SECONDS_TO_A_SIGNAL = 1.0
_SECONDS_TO_COMPLAINT = 10.0
_SECONDS_TO_LEAVE = 300.0
# Not at once: the thread is ending by itself, mostly.
_SECONDS_TO_INTERRUPT = 0.5


class FedBatch(NamedTuple):
  """A batch that is on the devices.

  Attributes:
    arrays: the batch, part of the global one.
    shapes: text that is the same for batches of the same shapes.
    tokens: positions of this process's part that count.
    wait_seconds: how long the reader of the queue waited for it.
    host: the fields that stay on the host, of this process's rows, by path.
    input_state: where the input stood right after it.
    order: what tells what was read up to it.
  """

  arrays: NestedMap
  shapes: str
  tokens: float
  wait_seconds: float
  host: dict[str, np.ndarray]
  input_state: bytes | None = None
  order: Any = None


class Feeder:
  """Iterates over an input's batches, a few of which are read ahead.

  What the input raises reaches the iterating thread with its own traceback.
  `close` (or the end of a `with` block) stops the thread; the input stays open.
  """

  def __init__(
    self,
    get_next: Callable[[], NestedMap],
    put: Callable[[NestedMap], Any],
    *,
    ahead: int = 2,
    max_batches: int | None = None,
    get_state: Callable[[], bytes | None] = lambda: None,
    is_host_field: Callable[[str, np.ndarray], bool] | None = None,
    order: Callable[[], Any] = lambda: None,
    stop: stopping.Stop = stopping.NEVER,
    check: Callable[[], object] = lambda: None,
    interrupt: Callable[[], object] = lambda: None,
  ):
    """Starts to read.

    Args:
      get_next: returns the next batch of numpy arrays; StopIteration ends it.
      put: sends a batch to the devices.
      ahead: how many batches may wait, at most.
      max_batches: how many batches are read at most; None for no limit.
      get_state: returns where the input stands; called after each batch.
      is_host_field: says which fields do not go to the devices; None if all do.
      order: returns what tells what was read up to the last batch.
      stop: tells, while a batch is waited for, whether the run is to stop;
        then `Interrupted` is raised, and the batch is still to come.
      check: raises where a batch that is waited for cannot come.
      interrupt: ends `get_next` where it waits for other processes.
    """
    self._get_next = get_next
    self._put = put
    self._get_state = get_state
    self._max_batches = max_batches
    self._is_host_field = is_host_field
    self._order = order
    self._stop_asked = stop
    self._check = check
    self._interrupt = interrupt
    self._seconds_to_leave = _SECONDS_TO_LEAVE
    self._queue = queue.Queue(maxsize=ahead)
    self._stop = threading.Event()
    self._ended = False
    self._peeked: FedBatch | None = None
    self._thread = threading.Thread(
      target=self._read, name='feeder', daemon=True
    )
    self._thread.start()

  def __enter__(self) -> 'Feeder':
    return self

  def __exit__(self, *unused_error):
    self.close()

  def __iter__(self) -> Iterator[FedBatch]:
    while True:
      fed = self._take() if self._peeked is None else self._peeked
      self._peeked = None
      if fed is None:
        return
      yield fed

  def peek(self) -> FedBatch | None:
    """Returns the batch that the iteration gives next, None at the end."""
    if self._peeked is None:
      self._peeked = self._take()
    if self._peeked is not None:
      # Who asks now has waited, not the step that is made of it.
      self._peeked = self._peeked._replace(wait_seconds=0.0)
    return self._peeked

  def _take(self) -> FedBatch | None:
    if self._ended:
      return None
    start = time.monotonic()
    item = self._next_item()
    wait = time.monotonic() - start
    if isinstance(item, FedBatch):
      return item._replace(wait_seconds=wait)
    self._ended = True
    if isinstance(item, BaseException):
      raise item
    return None

  def _next_item(self) -> FedBatch | BaseException | None:
    while True:
      # Python calls a signal's handler between two steps of this thread. One
      # that comes right before a wait without end would not be heard in it.
      try:
        return self._queue.get(timeout=_SECONDS_TO_A_SIGNAL)
      except queue.Empty:
        self._stop_asked.check_waiting()
        self._check_input()

  def _check_input(self):
    try:
      self._check()
    except BaseException:
      self._seconds_to_leave = _SECONDS_TO_COMPLAINT
      raise

  def close(self):
    """Stops the thread and waits for it.

    Not for ever: a run that fails, or was asked to stop, is to end though its
    input never gives the batch that it is making.
    """
    self._stop.set()
    self._ended = True
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
          'cannot end before the input has given the batch that it is making;'
          ' it has taken %d seconds since it was asked to end',
          _SECONDS_TO_COMPLAINT,
        )
      if now > began + self._seconds_to_leave:
        logging.error(
          'the input has not given the batch that it is making for %d seconds;'
          ' its thread is left behind',
          self._seconds_to_leave,
        )
        break
      try:  # Make room for an item that the thread may be waiting to put.
        self._queue.get(timeout=0.05)
      except queue.Empty:
        pass
    self._peeked = None
    with contextlib.suppress(queue.Empty):  # What waits may be on devices.
      while True:
        self._queue.get_nowait()

  def _read(self):
    count = 0
    try:
      while not self._stop.is_set():
        if self._max_batches is not None and count >= self._max_batches:
          break
        try:
          batch = self._get_next()
        except StopIteration:
          break
        self._queue.put(self._fed(batch))
        count += 1
      self._queue.put(None)
    except BaseException as e:  # noqa: BLE001 (raised again by the reader)
      self._queue.put(e)

  def _fed(self, batch: NestedMap) -> FedBatch:
    host = {}
    if self._is_host_field is not None:
      batch, host = host_fields.split(batch, self._is_host_field)
    return FedBatch(
      arrays=self._put(batch),
      shapes=shapes_of(batch),
      tokens=tokens_in(batch),
      wait_seconds=0.0,
      host=host,
      input_state=self._get_state(),
      order=self._order(),
    )


def shapes_of(batch: NestedMap) -> str:
  """Returns the shapes of a batch as text, such as `ids[8,64] labels[8,64]`."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(batch)
  return ' '.join(
    f'{jax.tree_util.keystr(path, simple=True, separator=".")}'
    f'[{",".join(map(str, np.shape(x)))}]'
    for path, x in leaves
  )


def tokens_in(batch: NestedMap) -> float:
  """Returns how many positions of a batch count; 0 where it does not say."""
  if 'weights' in batch:
    return float(np.sum(batch['weights']))
  if 'paddings' in batch:
    return float(np.size(batch['paddings']) - np.sum(batch['paddings']))
  if len(batch) == 1:
    [inner] = batch.values()
    if isinstance(inner, NestedMap):  # Of one of several tasks.
      return tokens_in(inner)
  return 0.0
