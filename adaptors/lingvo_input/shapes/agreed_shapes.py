"""Which shape all hosts feed at a step, where each reads an order of its own.

Readers that shuffle come to the batches of their buckets in different orders,
yet the batches of a step make up one array. So each host holds a few batches
ready, all say of what shapes these are, and the first process plans the next
steps: each time a shape that most hosts have, drawn as often as there are
batches of it. A host that has none feeds rows that weigh nothing, and its own
batches later.

Readers fill their buckets so regularly that hosts hardly ever lack a shape: see
`benchmarks/input_hosts.py`. If the batches of eight buckets came in no order at
all, 3 % of what hosts feed would weigh nothing with 2 hosts, and 9 % with 64.
"""

import collections
import functools
import json
import random
from collections.abc import Callable, Sequence

import jax
from absl import logging

from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.processes import process_channel

# With fewer batches to choose from more of what is fed weighs nothing.
_MOST_BATCHES = 32
_MOST_BYTES = 2**30
_STEPS_OF_A_PLAN = 8

# The shapes of a batch's leaves, as JSON.
_Shape = str


class AgreedShapes:
  """Gives the batches of one host in an order of shapes that hosts agree on.

  Attributes:
    num_weightless: batches that were given for want of one of the shape.
  """

  num_weightless = 0

  def __init__(
    self,
    *,
    name: str,
    next_batch: Callable[[], NestedMap],
    channel: process_channel.Channel,
  ):
    """Has read nothing.

    Args:
      name: how messages call the input.
      next_batch: returns this host's next batch; StopIteration at the end.
      channel: to the other hosts.
    """
    self._name = name
    self._next_batch = next_batch
    self._channel = channel
    self._held: dict[_Shape, collections.deque[NestedMap]] = {}
    self._bytes = 0
    self._ended = False  # This host's data.
    self._is_over = False  # That of all.
    self._like: NestedMap | None = None
    self._draw = random.Random(0)
    self._steps: collections.deque[_Shape] = collections.deque()

  def next(self) -> NestedMap:
    """Returns the batch that this host feeds at the next step.

    Raises:
      StopIteration: all hosts have fed all of their batches.
      UserError: batches have too many shapes, or this host has none.
      process_channel.Left: the channel was left.
    """
    # Reading keeps pace with the steps, and gets ahead of the first ones.
    self._read(2)
    if not self._steps and not self._is_over:
      self._read(_STEPS_OF_A_PLAN - self._num_held())
      told = {shape: len(held) for shape, held in self._held.items()}
      plan = self._channel.agree(
        json.dumps(told), functools.partial(_plan, draw=self._draw)
      )
      self._steps.extend(json.loads(plan))
      self._is_over = not self._steps
    if not self._steps:
      raise StopIteration
    return self._take(self._steps.popleft())

  def _read(self, count: int):
    """Reads so many batches, unless enough are held, or the data ends."""
    for _ in range(count):
      if self._ended or self._is_full():
        return
      try:
        batch = self._next_batch()
      except StopIteration:
        if self._like is None:
          raise errors.UserError(
            f'{self._name}: this host, of several, has no batch; expected data'
            ' for each of them'
          ) from None
        self._ended = True
        return
      self._like = batch
      shape = json.dumps([x.shape for x in jax.tree.leaves(batch)])
      self._held.setdefault(shape, collections.deque()).append(batch)
      bucket_shapes.check_few_shapes(self._name, self._held, batch)
      self._bytes += _bytes_of(batch)

  def _num_held(self) -> int:
    return sum(map(len, self._held.values()))

  def _is_full(self) -> bool:
    return self._num_held() >= _MOST_BATCHES or self._bytes >= _MOST_BYTES

  def _take(self, shape: _Shape) -> NestedMap:
    held = self._held.get(shape)
    if held:
      batch = held.popleft()
      self._bytes -= _bytes_of(batch)
      return batch
    if not self.num_weightless:
      logging.info(
        '%s: hosts feed the shape that most of them have ready; a host that has'
        ' no batch of it feeds rows of weight 0, and its own ones later'
        ' (input/weightless_batches counts them)',
        self._name,
      )
    self.num_weightless += 1
    return _weightless(self._like, json.loads(shape))


def _plan(told: Sequence[str], *, draw: random.Random) -> str:
  """Returns the shapes of the next steps, as JSON.

  Args:
    told: of each host how many batches of each shape it holds, as JSON. A host
      holds none at the end of its data only.
    draw: chooses among shapes of which as many hosts have a batch.

  Returns:
    A list; an empty one if no host holds anything.
  """
  held = [collections.Counter(json.loads(text)) for text in told]
  steps = []
  while len(steps) < _STEPS_OF_A_PLAN:
    hosts = collections.Counter(s for h in held for s, n in h.items() if n > 0)
    if not hosts:
      break
    total = sum(held, collections.Counter())
    best = [s for s in sorted(hosts) if hosts[s] == max(hosts.values())]
    [shape] = draw.choices(best, [total[s] for s in best])
    for counts in held:
      counts[shape] -= 1
    held = [+counts for counts in held]
    steps.append(shape)
  return json.dumps(steps)


def _bytes_of(batch: NestedMap) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(batch))


def _weightless(like: NestedMap, shapes: Sequence[Sequence[int]]) -> NestedMap:
  """Returns a batch like another, of other shapes, whose rows do not count."""
  leaves, tree = jax.tree_util.tree_flatten_with_path(like)
  blanks = [
    host_fields.blank(x, shape, example_rows.padding_value(path))
    for (path, x), shape in zip(leaves, shapes, strict=True)
  ]
  return jax.tree.unflatten(tree, blanks)
