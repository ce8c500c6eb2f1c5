"""Where one of several processes fails, the others end, too, and say why.

They would wait for it in the step that all make together, until JAX gives it up
after minutes.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

import jax
from absl import logging

from pax_compat import errors
from pax_compat.processes import process_channel

_KEY = 'pax_compat/failure'
# How JAX's errors of the store begin: nobody has failed; another one was first.
_NOT_FOUND = 'NOT_FOUND'
_ALREADY_EXISTS = 'ALREADY_EXISTS'
_SECONDS_TO_A_LOOK = 2.0
# A mistake that all make is told by each of them.
_SECONDS_TO_FAIL_BY_ITSELF = 1.0


@contextlib.contextmanager
def shared(
  name: str, *, but: type[BaseException] | tuple[()] = ()
) -> Iterator[None]:
  """Tells other processes if this one fails, and ends it if another one does.

  All processes enter it together; with one process nothing is done.

  Args:
    name: of what they do together.
    but: what is raised on all processes, and is no failure.
  """
  if jax.process_count() == 1:
    yield
    return
  watch = _Watch(process_channel.store(name))
  try:
    yield
  except but:
    raise
  except BaseException as e:
    watch.tell(e)
    raise
  finally:
    watch.end()


class _Watch:
  """Looks whether another process has failed, in a thread."""

  def __init__(self, store):
    self._store = store
    self._is_over = threading.Event()
    self._has_warned = False
    self._thread = threading.Thread(
      target=self._look, name='failures of other processes', daemon=True
    )
    self._thread.start()

  def tell(self, error: BaseException):
    """Tells others that this process fails."""
    self._is_over.set()
    status = 2 if isinstance(error, errors.UserError) else 1
    told = f'{status} process {jax.process_index()} has failed: {error!s}'
    try:
      self._store.key_value_set(_KEY, told)
    except jax.errors.JaxRuntimeError as e:
      if _ALREADY_EXISTS not in str(e):
        logging.warning('the other processes cannot be told of it: %s', e)

  def end(self):
    self._is_over.set()
    self._thread.join()

  def _look(self):
    while not self._is_over.wait(_SECONDS_TO_A_LOOK):
      try:
        status, _, told = self._store.key_value_try_get(_KEY).partition(' ')
      except jax.errors.JaxRuntimeError as e:
        if _NOT_FOUND not in str(e):
          self._warn(e)
        continue
      if not self._is_over.wait(_SECONDS_TO_FAIL_BY_ITSELF):
        _end(int(status), told)

  def _warn(self, error: Exception):
    """Logs once that the store does not answer; JAX ends the process later."""
    if not self._has_warned:
      self._has_warned = True
      logging.warning(
        'failures of other processes may go unnoticed, as the service of'
        ' jax.distributed.initialize does not answer: %s',
        error,
      )


def _end(status: int, told: str):
  """Ends this process, whose main thread may wait for ever."""
  print(f'error: {told}', file=sys.stderr, flush=True)
  sys.stdout.flush()
  logging.flush()
  # The one that has failed waits for the others before it ends.
  jax.distributed.shutdown()
  os._exit(status)
