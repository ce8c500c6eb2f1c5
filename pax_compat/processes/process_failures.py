"""If one of several processes fails, the others print its error and exit.

Otherwise they would wait for it in a collective until JAX times out after
minutes.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

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


@contextlib.contextmanager
def shared(
  name: str, *, but: type[BaseException] | tuple[()] = ()
) -> Iterator[None]:
  """Notifies other processes if this one fails, and exits if another one does.

  All processes enter it together. With one process it does nothing.

  Args:
    name: the name of the common work, for error messages.
    but: exceptions that all processes raise and that are not failures.
  """
  if jax.process_count() == 1:
    yield
    return
  store = process_channel.store(name)
  if not rendezvous.has_met():
    _watch_each_other(store)
  watch = _Watch(store)
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

  def __init__(self, store):
    self._store = store
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
    message = f'{status} process {jax.process_index()} has failed: {error!s}'
    try:
      self._store.key_value_set(_KEY, message)
    except jax.errors.JaxRuntimeError as e:
      if _ALREADY_EXISTS not in str(e):
        logging.warning('the other processes cannot be notified: %s', e)

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
      if not self._is_over.wait(_SECONDS_TO_FAIL_BY_ITSELF):
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


def _exit(status: int, message: str):
  """Exits, although the main thread may be waiting forever."""
  print(f'error: {message}', file=sys.stderr, flush=True)
  sys.stdout.flush()
  logging.flush()
  rendezvous.leave()
  # The failed process waits for the others before it exits.
  jax.distributed.shutdown()
  os._exit(status)
