"""Requests to stop, by SIGTERM or SIGINT, in one process or in several.

Processes that train together must stop at the same sync point: one that makes a
step alone waits forever. If a signal reaches any of them, JAX's preemption
service, which `jax.distributed.initialize` starts, finds a sync point that none
of them has passed. It installs a SIGTERM handler in C, which would keep every
SIGTERM. So ours replaces it, and passes on the first signal.
"""

import ctypes
import functools
import itertools
import signal
import threading
import time
from collections.abc import Callable

import jax
from absl import logging
from jax.experimental import multihost_utils

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Within this time, a signal that comes again is the same one: a scheduler sends
# it to all processes of a job, and the script that started this one passes it
# on.
_SECONDS_OF_ONE_SIGNAL = 0.1

# The service compares the numbers of sync points of all runs of a process, so
# the count goes on from run to run. The numbers are equal on all processes
# because these make the same calls in the same order, as the protocol demands.
_sync_points = itertools.count(1)


class Interrupted(Exception):  # noqa: N818 (not an error)
  """The current work is given up, because the run was asked to stop."""


class Stop:
  """Whether the run was asked to stop; it handles signals in a `with` block.

  In a run of several processes all of them make the same calls in the same
  order, and get the same results. The first signal is a request to stop, a
  later one has its usual effect.

  Attributes:
    number: of the first signal that this process received; SIGTERM if only
      other processes received one, None without a signal.
  """

  number: int | None = None

  def __init__(self):
    self._uses_service = False
    self._is_requested = False
    self._usual_handlers = {}
    self._received: set[int] = set()
    self._notify_service: Callable[[int], object] = lambda number: None

  def __enter__(self) -> 'Stop':
    if jax.process_count() > 1:
      self._uses_service = _service_runs()
      notify = _handler_of_service() if self._uses_service else None
      if notify is None:
        logging.warning(
          'SIGTERM and SIGINT are not handled, so they end a process without a'
          ' checkpoint: a run of several processes handles them only if'
          ' jax.distributed.initialize has started the preemption service'
          ' (jax_enable_preemption_service), and no other handler of SIGTERM'
          ' was installed after it'
        )
        return self
      self._notify_service = notify
    if threading.current_thread() is threading.main_thread():
      self._usual_handlers = {s: signal.getsignal(s) for s in _SIGNALS}
      for number in _SIGNALS:
        signal.signal(number, self._handle)
    return self

  def __exit__(self, *unused_error):
    for number, handler in self._usual_handlers.items():
      signal.signal(number, handler)

  def _handle(self, number, frame):
    del frame
    if number in self._received:
      return
    self._received.add(number)
    self.number = self.number or number
    self._is_requested = self._is_requested or not self._uses_service
    self._notify_service(signal.SIGTERM)
    logging.info(
      'got signal %d: saving and stopping after the current step', number
    )
    time.sleep(_SECONDS_OF_ONE_SIGNAL)  # Python calls this function meanwhile.
    signal.signal(number, self._usual_handlers[number])

  def is_asked(self) -> bool:
    """Returns whether to stop at this sync point."""
    if self._uses_service and not self._is_requested:
      number = next(_sync_points)
      self._is_requested = multihost_utils.reached_preemption_sync_point(number)
    if self._is_requested:
      self.number = self.number or signal.SIGTERM
    return self._is_requested

  def check(self):
    """Raises if the run is to stop.

    Raises:
      Interrupted: the run is to stop at this sync point.
    """
    if self.is_asked():
      raise Interrupted

  def check_waiting(self):
    """Raises if the run is to stop while this process waits for a batch.

    With several processes it does nothing: others may have begun the step, so
    this is not a sync point.

    Raises:
      Interrupted: the run is to stop.
    """
    if not self._uses_service:
      self.check()


# For evaluations outside a run.
NEVER = Stop()


def _service_runs() -> bool:
  """Returns whether the service runs; it is the same on all processes."""
  return (
    jax.distributed.is_initialized()
    and jax.config.jax_enable_preemption_service
  )


@functools.cache
def _handler_of_service() -> Callable[[int], object] | None:
  """Returns the service's signal handler; None if it is not installed.

  The handler is a C function, which Python's `signal` does not show. It is
  looked up before ours replaces it, once in the life of the process.
  """
  if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
    return None  # Another Python handler was installed after it.
  getsig = ctypes.pythonapi.PyOS_getsig
  getsig.argtypes, getsig.restype = [ctypes.c_int], ctypes.c_void_p
  address = getsig(signal.SIGTERM)
  if not address:  # The default: the service has ended.
    return None
  return ctypes.CFUNCTYPE(None, ctypes.c_int)(address)
