"""Agreement between the processes of a run without collectives.

Collectives must have the same order on all processes, so a prefetching thread
cannot use them. Instead, strings are exchanged through the key-value store of
the service that `jax.distributed.initialize` starts: 1.2 ms per round for two
processes on one machine, 2.2 ms for four.
"""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import distributed  # JAX has no public key-value store.

from pax_compat import errors

_POLL_MS = 500
_TIMED_OUT = 'DEADLINE_EXCEEDED'

# The number of channels of each name that this process has opened. It is part
# of a channel's keys and must be equal on all processes: opening the channels
# of one name in the same order is part of the protocol. It lives as long as the
# store, that is, as the process.
_numbers = collections.defaultdict(itertools.count)


class Left(Exception):  # noqa: N818 (it is not an error)
  """The channel was left while it waited for other processes."""


def store(name: str) -> Any:
  """Returns the key-value store that all processes of a run share.

  Args:
    name: the purpose, for the error message.

  Raises:
    UserError: the processes are not connected.
  """
  client = distributed.global_state.client
  if client is None:
    raise errors.UserError(
      f'{name}: {jax.process_count()} processes are not connected; expected'
      ' --multiprocess, or jax.distributed.initialize() before JAX is used'
    )
  return client


def all_arrive(name: str, seconds: float) -> bool:
  """Returns whether all processes call this within some time.

  Args:
    name: of what they do. All processes make the calls of one name in the same
      order.
    seconds: how long a process waits for the others.
  """
  shared, key = store(name), f'pax_compat/{name}/{next(_numbers[name])}'
  shared.key_value_set(f'{key}/{jax.process_index()}', 'here')
  deadline = time.monotonic() + seconds
  for index in range(jax.process_count()):
    left = max(int(1000 * (deadline - time.monotonic())), 1)
    try:
      shared.blocking_key_value_get(f'{key}/{index}', left)
    except jax.errors.JaxRuntimeError as e:
      if _TIMED_OUT not in str(e):
        raise
      return False
  return True


class Channel:
  """A sequence of decisions that all processes agree on."""

  def __init__(self, name: str):
    """Opens the channel without sending anything.

    Args:
      name: the name of the channel. All processes open the channels of one name
        in the same order.

    Raises:
      UserError: the processes are not connected.
    """
    self._store = store(name)
    self._key = f'pax_compat/{name}/{next(_numbers[name])}'
    self._rounds = itertools.count()
    self._is_left = threading.Event()

  def agree(self, mine: str, decide: Callable[[Sequence[str]], str]) -> str:
    """Returns the decision of process 0. All processes make the same calls.

    Args:
      mine: the message of this process, not empty.
      decide: returns the decision from the messages of all processes.

    Raises:
      Left: `leave` was called, now or before.
    """
    me, count = jax.process_index(), jax.process_count()
    number = next(self._rounds)
    self._send(f'{number}/{me}', mine)
    if me == 0:
      messages = [self._receive(f'{number}/{i}') for i in range(count)]
      self._send(f'{number}/decision', decide(messages))
    decision = self._receive(f'{number}/decision')
    # All processes have sent a message in this round, so they have received the
    # decision of the previous round.
    if me == 0 and number:
      self._store.key_value_delete(f'{self._key}/{number - 1}/')
    return decision

  def all(self, mine: bool) -> bool:
    """Returns whether `mine` is True on all processes; see `agree`."""
    return self.agree(str(mine), _all_true) == str(True)

  def leave(self):
    """Stops waiting for others, permanently. Any thread may call it."""
    self._is_left.set()

  def _send(self, key: str, message: str):
    self._store.key_value_set(f'{self._key}/{key}', message)

  def _receive(self, key: str) -> str:
    while not self._is_left.is_set():
      try:
        return self._store.blocking_key_value_get(
          f'{self._key}/{key}', _POLL_MS
        )
      except jax.errors.JaxRuntimeError as e:
        if _TIMED_OUT not in str(e):
          raise
    raise Left


def _all_true(messages: Sequence[str]) -> str:
  return str(all(message == str(True) for message in messages))
