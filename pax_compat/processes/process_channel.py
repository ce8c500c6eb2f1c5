"""What the processes of a run agree on without their devices.

A thread that reads ahead cannot use collectives, whose order all processes must
keep. So texts travel by the key-value store of the service that
`jax.distributed.initialize` starts: 1.2 ms a round for two processes on a
machine, 2.2 ms for four.
"""

import collections
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import distributed  # Nothing public leads to the store.

from pax_compat import errors

_MS_TO_A_LOOK = 500
_TIMED_OUT = 'DEADLINE_EXCEEDED'

# How many channels of each name this process has opened. It makes the keys of a
# channel, so it must be equal on all processes: that all of them open the
# channels of one name in the same order is a part of the protocol. It lives as
# long as the store does, that is, as the process.
_numbers = collections.defaultdict(itertools.count)


class Left(Exception):  # noqa: N818 (it is no error)
  """The channel was left while others were waited for."""


def store(name: str) -> Any:
  """Returns the key-value store that all processes of a run share.

  Args:
    name: of what they use it for.

  Raises:
    UserError: processes have no service between them.
  """
  client = distributed.global_state.client
  if client is None:
    raise errors.UserError(
      f'{name}: {jax.process_count()} processes have nothing that connects'
      ' them; expected --multiprocess, or jax.distributed.initialize() before'
      ' JAX is used'
    )
  return client


class Channel:
  """Takes all processes to the same decisions, one after the other."""

  def __init__(self, name: str):
    """Opens it; nothing is sent.

    Args:
      name: of the channel. All processes open the channels of one name in the
        same order.

    Raises:
      UserError: processes have no service between them.
    """
    self._store = store(name)
    self._key = f'pax_compat/{name}/{next(_numbers[name])}'
    self._rounds = itertools.count()
    self._is_left = threading.Event()

  def agree(self, mine: str, decide: Callable[[Sequence[str]], str]) -> str:
    """Returns what process 0 decides; all processes make the same calls.

    Args:
      mine: what this process has to say, not empty.
      decide: makes the decision, a text, of what each process has said.

    Raises:
      Left: `leave` was called, now or before.
    """
    me, count = jax.process_index(), jax.process_count()
    number = next(self._rounds)
    self._say(f'{number}/{me}', mine)
    if me == 0:
      told = [self._hear(f'{number}/{i}') for i in range(count)]
      self._say(f'{number}/decision', decide(told))
    decision = self._hear(f'{number}/decision')
    # Who has said something in this round needs nothing of the one before.
    if me == 0 and number:
      self._store.key_value_delete(f'{self._key}/{number - 1}/')
    return decision

  def all(self, mine: bool) -> bool:
    """Returns whether all processes say True; see `agree`."""
    return self.agree(str(mine), _all_true) == str(True)

  def leave(self):
    """Ends the waiting for others, for good; any thread may call it."""
    self._is_left.set()

  def _say(self, key: str, text: str):
    self._store.key_value_set(f'{self._key}/{key}', text)

  def _hear(self, key: str) -> str:
    while not self._is_left.is_set():
      try:
        return self._store.blocking_key_value_get(
          f'{self._key}/{key}', _MS_TO_A_LOOK
        )
      except jax.errors.JaxRuntimeError as e:
        if _TIMED_OUT not in str(e):
          raise
    raise Left


def _all_true(told: Sequence[str]) -> str:
  return str(all(text == str(True) for text in told))
