"""The order in which hosts share the batches of one reproducible generator.

All hosts read the same batches in the same order. H successive batches of one
shape make up a step, and host h feeds the h-th of them: so all hosts feed the
same shape at each step, and every batch is fed exactly once, also over restarts
with other numbers of hosts. Where it stands is said by how many batches were
read, and by which of these have not been fed yet.

Legend: H hosts.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat import errors
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap

_FORMAT = 1
_SECONDS_TO_A_LOG_LINE = 30


@dataclasses.dataclass
class _Group:
  """Batches of one shape that become a step when they are H.

  Attributes:
    indices: which batches of the generator they are.
    own: the one that this host feeds; None before it comes.
    first: the first of them.
  """

  indices: list[int] = dataclasses.field(default_factory=list)
  own: NestedMap | None = None
  first: NestedMap | None = None


class Replay:
  """Feeds the batches of one host, and says and finds where it stands."""

  def __init__(
    self,
    *,
    name: str,
    next_batch: Callable[[], NestedMap],
    skip: Callable[[int], int],
    num_hosts: int,
    host: int,
  ):
    """Starts before the generator's first batch.

    Args:
      name: how messages call the input.
      next_batch: returns the generator's next batch; StopIteration at the end.
      skip: reads so many batches on, and returns how many there were.
      num_hosts: H.
      host: which of them this one is.
    """
    self._name = name
    self._next_batch = next_batch
    self._skip = skip
    self._num_hosts = num_hosts
    self._host = host
    self._read = 0
    self._ended = False
    self._open: dict[tuple, _Group] = {}
    self._full: list[_Group] = []

  def next(self) -> NestedMap:
    """Returns the batch that this host feeds at the next step.

    At the end of the data, hosts for which there is no batch left get one that
    weighs nothing.

    Raises:
      StopIteration: all batches were fed.
      UserError: batches have too many shapes.
    """
    while not self._full and not self._ended:
      self._read_one()
    if self._full:
      group = self._full.pop(0)
    else:
      group = self._oldest()
    if group.own is not None:
      return group.own
    return example_rows.zero_weight(group.first)

  def _read_one(self):
    try:
      batch = self._next_batch()
    except StopIteration:
      self._ended = True
      return
    shape = tuple(x.shape for x in jax.tree.leaves(batch))
    group = self._open.setdefault(shape, _Group())
    bucket_shapes.check_few_shapes(self._name, self._open, batch)
    if len(group.indices) == self._host:
      group.own = batch
    if not group.indices:
      group.first = batch
    group.indices.append(self._read)
    self._read += 1
    if len(group.indices) == self._num_hosts:
      self._full.append(self._open.pop(shape))

  def _oldest(self) -> _Group:
    """Takes the group that would have been full first, if it had gone on."""
    if not self._open:
      raise StopIteration
    shape = min(self._open, key=lambda s: self._open[s].indices[0])
    return self._open.pop(shape)

  def state(self) -> dict[str, Any]:
    """Returns where it stands: the same on all hosts, good for any number."""
    waiting = [
      i for g in (*self._full, *self._open.values()) for i in g.indices
    ]
    return {'read': self._read, 'waiting': sorted(waiting)}

  def go_to(self, read: int, waiting: list[int]):
    """Reads on from the first batch to where a state says.

    Args:
      read: how many batches were read.
      waiting: which of them have not been fed.

    Raises:
      UserError: there are no more so many batches.
    """
    if not read:
      return
    start = time.monotonic()
    # The first batch decides about the lengths of the others.
    wanted = sorted({0, *waiting})
    for index, after in zip(wanted, [*wanted[1:], read], strict=True):
      if index in waiting:
        self._read_one()
      elif not self._ended:
        self._ended = not _has_batch(self._next_batch)
        self._read += not self._ended
      self.skip(after - self._read)
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

  def skip(self, count: int):
    """Reads so many batches on, which are never fed."""
    last = time.monotonic()
    target = self._read + count
    while self._read < target and not self._ended:
      step = min(100, target - self._read)
      skipped = self._skip(step)
      self._read += skipped
      self._ended = skipped < step
      if time.monotonic() - last > _SECONDS_TO_A_LOG_LINE:
        last = time.monotonic()
        logging.info('%s: read %d batches again', self._name, self._read)

  def after_steps(self, steps: int):
    """Goes on to where so many steps of the same number of hosts lead."""
    if self._num_hosts == 1:
      self.go_to(steps, [])
      return
    for _ in range(steps):
      self.next()


def _has_batch(next_batch: Callable[[], NestedMap]) -> bool:
  try:
    next_batch()
  except StopIteration:
    return False
  return True


def pack_state(
  name: str, facts: dict[str, Any], state: dict[str, Any]
) -> bytes:
  """Returns a state as bytes.

  Args:
    name: of the input's class.
    facts: what the order of the batches depends on, by name, as JSON.
    state: where the input stands.
  """
  told = {'format': _FORMAT, 'class': name, 'facts': facts, **state}
  return json.dumps(told, sort_keys=True).encode()


def unpack_state(
  told_name: str, name: str, facts: dict[str, Any], state: bytes
) -> dict[str, Any]:
  """Returns what `pack_state` was given.

  Args:
    told_name: how messages call the input.
    name: of the input's class.
    facts: what the order depends on now; those of the state must be the same.
    state: as bytes.

  Raises:
    UserError: it is no such state, or the order has become another one.
  """
  try:
    told = json.loads(state)
    known = told['format'] == _FORMAT and told['class'] == name
  except (ValueError, KeyError, TypeError):
    known = False
  if not known:
    raise errors.UserError(
      f'{told_name}: its saved state is none of a {name} in replay mode:'
      f' {state[:80]!r}'
    )
  for key in sorted({*facts, *told['facts']}):
    before, now = told['facts'].get(key), facts.get(key)
    if before != now:
      raise errors.UserError(
        f'{told_name}: {key} was {before!r} before the restart and is {now!r};'
        ' to go on exactly, in replay mode, it must be the same. Without'
        ' replay a run goes on in a new order'
      )
  return told
