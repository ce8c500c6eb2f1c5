"""If one of several processes fails, the others print its error and exit.

Otherwise they would wait for it in a collective until JAX times out after
minutes. A process whose main thread hangs ends in the same way: `end`.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax
from absl import logging
from jax._src import distributed  # JAX does not tell the coordinator's address.

from pax_compat import errors
from pax_compat.processes import process_channel, rendezvous

_KEY = 'pax_compat/failure'
_PORT = 'pax_compat/port'
_MS_TO_PUBLISH = 60_000
# Prefixes of the store's errors: no process has failed; another failed first.
_NOT_FOUND = 'NOT_FOUND'
_ALREADY_EXISTS = 'ALREADY_EXISTS'
_POLL_SECONDS = 2.0
# An error that all processes have is printed by each of them.
_SECONDS_TO_FAIL_BY_ITSELF = 1.0
_SECONDS_TO_BE_ENDED = 3.0
# How long a process that hangs waits for the others to end.
_SECONDS_TO_END = 15.0


@contextlib.contextmanager
def shared(
  name: str,
  *,
  but: type[BaseException] | tuple[()] = (),
  record: Callable[[str], object] = lambda line: None,
) -> Iterator[None]:
  """Notifies other processes if this one fails, and exits if another one does.

  All processes enter it together. With one process it does nothing.

  Args:
    name: the name of the common work, for error messages.
    but: exceptions that all processes raise and that are not failures.
    record: writes an error of another process, which ends this one, to its log.
  """
  if jax.process_count() == 1:
    yield
    return
  store = process_channel.store(name)
  if not rendezvous.has_met():
    _watch_each_other(store)
  watch = _Watch(store, record)
  try:
    yield
  except but:
    raise
  except BaseException as e:
    if rendezvous.failure_to_await(e):
      # The other process is named, and this one ends, if that one is gone.
      time.sleep(_SECONDS_TO_BE_ENDED)
    watch.report(e)
    raise
  finally:
    watch.end()
    rendezvous.leave()


def _watch_each_other(store):
  """Connects the processes of a cluster, which JAX has connected before."""

  def exchange(port):
    if port is not None:
      store.key_value_set(_PORT, port)
    return store.blocking_key_value_get(_PORT, _MS_TO_PUBLISH)

  host = distributed.global_state.coordinator_address.rpartition(':')[0]
  try:
    rendezvous.meet_connected(
      host.strip('[]'),
      count=jax.process_count(),
      index=jax.process_index(),
      exchange=exchange,
    )
  except jax.errors.JaxRuntimeError as e:
    logging.warning('processes cannot watch each other: %s', e)


class _Watch:
  """A thread that polls whether another process has failed."""

  def __init__(
    self, store, record: Callable[[str], object] = lambda line: None
  ):
    self._store = store
    self._record = record
    self._is_over = threading.Event()
    self._has_warned = False
    self._thread = threading.Thread(
      target=self._poll, name='failures of other processes', daemon=True
    )
    self._thread.start()

  def report(self, error: BaseException):
    """Notifies the other processes that this one fails."""
    self._is_over.set()
    status = 2 if isinstance(error, errors.UserError) else 1
    _publish(self._store, status, str(error))

  def end(self):
    self._is_over.set()
    self._thread.join()

  def _poll(self):
    while not self._is_over.wait(_POLL_SECONDS):
      try:
        status, _, message = self._store.key_value_try_get(_KEY).partition(' ')
      except jax.errors.JaxRuntimeError as e:
        if _NOT_FOUND not in str(e):
          self._warn(e)
        continue
      if message.startswith(_of_this_process()):
        return  # It ends by itself, as its main thread hangs.
      if not self._is_over.wait(_SECONDS_TO_FAIL_BY_ITSELF):
        self._record(f'ended, because {message}')
        _exit(int(status), message)

  def _warn(self, error: Exception):
    """Logs once that the store does not answer; JAX exits later."""
    if not self._has_warned:
      self._has_warned = True
      logging.warning(
        'failures of other processes may go unnoticed, because the service of'
        ' jax.distributed.initialize does not answer: %s',
        error,
      )


def _of_this_process() -> str:
  return f'process {jax.process_index()} has failed: '


def _publish(store, status: int, message: str):
  """Notifies the other processes that this one fails."""
  try:
    store.key_value_set(_KEY, f'{status} {_of_this_process()}{message}')
  except jax.errors.JaxRuntimeError as e:
    if _ALREADY_EXISTS not in str(e):
      logging.warning('the other processes cannot be notified: %s', e)


def end(message: str, *, status: int = 1) -> NoReturn:
  """Ends this process, although its main thread hangs, and the others.

  Nothing that hangs, too, delays it by more than some seconds. Call it from
  another thread.

  Args:
    message: the error.
    status: of the processes. With 1 a scheduler may start them again, while 2
      is that of an invalid command.
  """

  def notify():
    several = jax.process_count() > 1
    if several:
      _publish(process_channel.store('the end of a process'), status, message)
    print(f'error: {message}', file=sys.stderr, flush=True)
    sys.stdout.flush()
    logging.flush()
    if several:
      rendezvous.leave()
      # It waits for the others, which end when they read the message.
      jax.distributed.shutdown()

  thread = threading.Thread(target=notify, name='end', daemon=True)
  thread.start()
  thread.join(_SECONDS_TO_END)
  os._exit(status)


def _exit(status: int, message: str):
  """Exits, although the main thread may be waiting forever."""
  print(f'error: {message}', file=sys.stderr, flush=True)
  sys.stdout.flush()
  logging.flush()
  rendezvous.leave()
  # The failed process waits for the others before it exits.
  jax.distributed.shutdown()
  os._exit(status)
