"""The order in which hosts share the batches of one reproducible generator.

All hosts read the same batches in the same order. H successive batches of one
shape make a step, and host h returns the h-th of them. So all hosts return one
shape at each step, and every batch is returned once, also over restarts with
other numbers of hosts. With H = 2 and buckets of the lengths 10 and 20:

    the generator's batches    0:10  1:20  2:10  3:10  4:20  5:10
    step                          1     2     3
    host 0                     0:10  1:20  3:10
    host 1                     2:10  4:20  5:10

The state is the number of batches that were read, and which of these still
wait: after step 1, 3 batches were read, and batch 1 waits.

Legend: H hosts.
"""

import collections
import json
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from adaptors.lingvo_input.shapes import batch_queue
from pax_compat import errors
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap

_FORMAT = 1
_SECONDS_TO_A_LOG_LINE = 30


class ReplayOrder:
  """The batches of one host; its position can be saved and restored."""

  def __init__(
    self,
    *,
    name: str,
    next_batch: Callable[[], NestedMap],
    skip: Callable[[], None],
    num_hosts: int,
    host: int,
  ):
    """Starts before the generator's first batch.

    Args:
      name: of the input, in messages.
      next_batch: returns the generator's next batch; StopIteration at the end.
      skip: skips a batch; StopIteration at the end.
      num_hosts: H.
      host: the index of this host.
    """
    self._name = name
    self._next_batch = next_batch
    self._skip = skip
    self._num_hosts = num_hosts
    self._host = host
    self._read = 0
    self._ended = False
    self._queue = batch_queue.BatchQueue()
    # The shapes of which H batches wait, in the order of their H-th ones.
    self._steps: collections.deque[batch_queue.Shape] = collections.deque()

  def next(self) -> NestedMap:
    """Returns this host's batch of the next step.

    At the end of the data some hosts may have no batch left. They return one
    of weight 0.

    Raises:
      StopIteration: all batches were returned.
      UserError: batches have too many shapes.
    """
    while not self._steps and not self._ended:
      self._read_one()
    if self._steps:
      shape = self._steps.popleft()
    elif self._queue:
      shape = self._queue.oldest()
    else:
      raise StopIteration
    step = self._queue.pop(shape, self._num_hosts)
    if self._host < len(step):
      return step[self._host].batch
    return example_rows.zero_weight(step[0].batch)

  def _read_one(self):
    try:
      batch = self._next_batch()
    except StopIteration:
      self._ended = True
      return
    shape = batch_queue.shape_of(batch)
    position = self._queue.counts().get(shape, 0) % self._num_hosts
    # Hosts without a batch copy the first one of a step; see `next`.
    kept = batch if position in (0, self._host) else None
    self._queue.add(shape, self._read, kept)
    batch_queue.check_few_shapes(self._name, self._queue.counts(), batch)
    self._read += 1
    if position == self._num_hosts - 1:
      self._steps.append(shape)

  def state(self) -> dict[str, Any]:
    """Returns the position: the same on all hosts, good for any number."""
    return {'read': self._read, 'waiting': self._queue.indices()}

  def go_to(self, read: int, waiting: list[int]):
    """Reads on from the first batch to a saved position.

    Args:
      read: the number of batches that were read.
      waiting: the indices of those that were not returned.

    Raises:
      UserError: there are fewer than `read` batches.
    """
    if not read:
      return
    start = time.monotonic()
    # The first batch decides about the lengths of the others.
    wanted = sorted({0, *waiting})
    for index, after in zip(wanted, [*wanted[1:], read], strict=True):
      if index in waiting:
        self._read_one()
      else:
        self._skip_one(self._next_batch)
      self._skip_to(after)
    if self._read < read:
      raise errors.UserError(
        f'{self._name}: {read} batches were read before the restart, and now'
        f' there are {self._read}; expected the same data'
      )
    logging.info(
      '%s: read %d batches again in %.1f seconds, to go on exactly after them',
      self._name,
      read,
      time.monotonic() - start,
    )

  def _skip_to(self, read: int):
    """Skips batches, which are never returned, until N were read."""
    last = time.monotonic()
    while self._read < read and not self._ended:
      self._skip_one(self._skip)
      if time.monotonic() - last > _SECONDS_TO_A_LOG_LINE:
        last = time.monotonic()
        logging.info('%s: read %d batches again', self._name, self._read)

  def _skip_one(self, skip: Callable[[], object]):
    if self._ended:
      return
    try:
      skip()
      self._read += 1
    except StopIteration:
      self._ended = True

  def after_steps(self, steps: int):
    """Goes to the position after N steps of the same number of hosts."""
    if self._num_hosts == 1:
      self.go_to(steps, [])
      return
    for _ in range(steps):
      self.next()


def pack_state(
  name: str, metadata: dict[str, Any], state: dict[str, Any]
) -> bytes:
  """Returns a state as bytes.

  Args:
    name: of the input's class.
    metadata: what the order of the batches depends on, by name, as JSON.
    state: the position; see `ReplayOrder.state`.
  """
  # Saved states have the key 'facts'.
  packed = {'format': _FORMAT, 'class': name, 'facts': metadata, **state}
  return json.dumps(packed, sort_keys=True).encode()


def unpack_state(
  label: str, name: str, metadata: dict[str, Any], state: bytes
) -> dict[str, Any]:
  """Returns the state that `pack_state` was given.

  Args:
    label: the input's name in messages.
    name: of the input's class.
    metadata: what the order depends on now; it must equal the saved metadata.
    state: as bytes.

  Raises:
    UserError: it is not a replay state of this class, or the order differs.
  """
  try:
    packed = json.loads(state)
    known = packed['format'] == _FORMAT and packed['class'] == name
  except (ValueError, KeyError, TypeError):
    known = False
  if not known:
    raise errors.UserError(
      f'{label}: its saved state is not that of a {name} in replay mode:'
      f' {state[:80]!r}'
    )
  for key in sorted({*metadata, *packed['facts']}):
    before, now = packed['facts'].get(key), metadata.get(key)
    if before != now:
      raise errors.UserError(
        f'{label}: {key} was {before!r} before the restart and is {now!r};'
        ' to go on exactly, in replay mode, it must be the same. Without'
        ' replay a run goes on in a new order'
      )
  return packed
