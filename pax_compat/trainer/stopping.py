"""Being asked to stop, by SIGTERM or SIGINT, in one process or in several.

Processes that train together have to stop at the same place: one that makes a
step alone waits for ever. Where a signal reaches any of them, JAX's preemption
service, which `jax.distributed.initialize` starts, finds a place that none of
them has passed. It hears of SIGTERM by a handler of its own, which would take
every SIGTERM and keep it. So ours stands in front of it, and passes on the
first signal.
"""

import ctypes
import functools
import itertools
import signal
import threading
from collections.abc import Callable

import jax
from absl import logging
from jax.experimental import multihost_utils

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The service compares numbers of places, of all runs of a process, so they
# count on from run to run. They are equal on all processes because all of them
# ask at the same places in the same order: that is a part of the protocol.
_places = itertools.count(1)


class Interrupted(Exception):  # noqa: N818 (it is no error)
  """What is being done ends here, because the run is asked to stop."""


class Stop:
  """Tells whether the run is asked to stop, while it is entered.

  In a run of several processes all of them ask at the same places, in the same
  order, and get the same answers. The first signal asks to stop, the second one
  has its usual effect.

  Attributes:
    number: of the signal that asked: of the first one that this process got,
      SIGTERM if others got one only, None if none was heard of.
  """

  number: int | None = None

  def __init__(self):
    """Hears nothing yet."""
    self._is_agreed = False
    self._is_due = False
    self._usual = {}
    self._tell: Callable[[int], object] = lambda number: None

  def __enter__(self) -> 'Stop':
    if jax.process_count() > 1:
      self._is_agreed = _service_runs()
      tell = _handler_of_service() if self._is_agreed else None
      if tell is None:
        logging.warning(
          'SIGTERM and SIGINT are left alone, so they end a process without a'
          ' checkpoint: in a run of several processes they are heard where'
          ' jax.distributed.initialize has started the preemption service'
          ' (jax_enable_preemption_service), and no other handler of SIGTERM'
          ' has taken its place'
        )
        return self
      self._tell = tell
    if threading.current_thread() is threading.main_thread():
      self._usual = {s: signal.getsignal(s) for s in _SIGNALS}
      for number in _SIGNALS:
        signal.signal(number, self._hear)
    return self

  def __exit__(self, *unused_error):
    for number, handler in self._usual.items():
      signal.signal(number, handler)

  def _hear(self, number, frame):
    del frame
    self.number = self.number or number
    self._is_due = self._is_due or not self._is_agreed
    signal.signal(number, self._usual[number])
    self._tell(signal.SIGTERM)
    logging.info('got signal %d: saves and stops as soon as it can', number)

  def is_asked(self) -> bool:
    """Whether to stop at this place."""
    if self._is_agreed and not self._is_due:
      place = next(_places)
      self._is_due = multihost_utils.reached_preemption_sync_point(place)
    if self._is_due:
      self.number = self.number or signal.SIGTERM
    return self._is_due

  def check(self):
    """Asks.

    Raises:
      Interrupted: the run is to stop at this place.
    """
    if self.is_asked():
      raise Interrupted

  def check_waiting(self):
    """Asks while this process waits for something that it needs for a step.

    Others may have begun the step, so with several processes it is no place to
    stop at.

    Raises:
      Interrupted: the run is to stop.
    """
    if not self._is_agreed:
      self.check()


# Of what is not part of a run.
NEVER = Stop()


def _service_runs() -> bool:
  """Whether processes can agree on a place. It is the same on all of them."""
  return (
    jax.distributed.is_initialized()
    and jax.config.jax_enable_preemption_service
  )


@functools.cache
def _handler_of_service() -> Callable[[int], object] | None:
  """Returns what tells the service of a signal; None if it cannot be told.

  The service sets a handler in C, of which Python knows nothing. It is looked
  up before ours takes its place, once in the life of the process.
  """
  if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
    return None  # Some other Python handler was set after it.
  getsig = ctypes.pythonapi.PyOS_getsig
  getsig.argtypes, getsig.restype = [ctypes.c_int], ctypes.c_void_p
  address = getsig(signal.SIGTERM)
  if not address:  # The default: it runs no longer.
    return None
  return ctypes.CFUNCTYPE(None, ctypes.c_int)(address)
