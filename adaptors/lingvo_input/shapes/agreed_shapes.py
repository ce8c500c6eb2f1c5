"""Agreement of hosts that read different orders on the shape of each step.

Hosts that shuffle reach the batches of their buckets in different orders, but
the batches of one step form one global array. So each host reads a few batches
ahead, all hosts publish how many they have of each shape, and process 0 plans
the next steps: always a shape that most hosts have, drawn in proportion to its
number of batches. A host without a batch of that shape returns padding rows of
weight 0, and its own batches later. With two hosts and lengths 10 and 20:

    host 0 has   10 10 20        step      1    2    3
    host 1 has   10 20           host 0   10   20   10
                                 host 1   10   20   10 (weight 0)

Readers fill their buckets so regularly that hosts hardly ever lack a shape: see
`benchmarks/input_hosts.py`. If the batches of eight buckets came in random
order, 3 % of the batches would have weight 0 with 2 hosts, and 9 % with 64.
"""

import collections
import functools
import json
import random
from collections.abc import Callable, Sequence

from absl import logging

from adaptors.lingvo_input.shapes import batch_queue
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from pax_compat.processes import process_channel

# With fewer batches to choose from, more batches have weight 0.
_MOST_BATCHES = 32
_MOST_BYTES = 2**30
_STEPS_OF_A_PLAN = 8


class AgreedShapes:
  """The batches of one host, in an order of shapes that all hosts agree on.

  Attributes:
    num_weightless: number of batches of weight 0 returned for lack of a batch
      of the agreed shape.
  """

  num_weightless = 0

  def __init__(
    self,
    *,
    name: str,
    next_batch: Callable[[], NestedMap],
    channel: process_channel.Channel,
  ):
    """Reads nothing yet.

    Args:
      name: of the input, in messages.
      next_batch: returns this host's next batch; StopIteration at the end.
      channel: to the other hosts.
    """
    self._name = name
    self._next_batch = next_batch
    self._channel = channel
    self._queue = batch_queue.BatchQueue()
    self._shapes: set[batch_queue.Shape] = set()  # All so far.
    self._num_read = 0
    self._ended = False  # This host's data.
    self._is_over = False  # The data of all hosts.
    self._like: NestedMap | None = None
    self._draw = random.Random(0)
    self._steps: collections.deque[batch_queue.Shape] = collections.deque()

  def next(self) -> NestedMap:
    """Returns this host's batch of the next step.

    Raises:
      StopIteration: all hosts have returned all of their batches.
      UserError: batches have too many shapes, or this host has no batch.
      process_channel.Left: the channel was left.
    """
    # Reading keeps pace with the steps, and gets ahead during the first ones.
    self._read(2)
    if not self._steps and not self._is_over:
      self._read(_STEPS_OF_A_PLAN - len(self._queue))
      plan = self._channel.agree(
        json.dumps(self._queue.counts()),
        functools.partial(_plan, draw=self._draw),
      )
      self._steps.extend(json.loads(plan))
      self._is_over = not self._steps
    if not self._steps:
      raise StopIteration
    return self._take(self._steps.popleft())

  def _read(self, count: int):
    """Reads `count` batches, fewer if the queue is full or the data ends."""
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
      shape = batch_queue.shape_of(batch)
      self._queue.add(shape, self._num_read, batch)
      self._num_read += 1
      self._shapes.add(shape)
      batch_queue.check_few_shapes(self._name, self._shapes, batch)

  def _is_full(self) -> bool:
    few_bytes = self._queue.num_bytes < _MOST_BYTES
    return not few_bytes or len(self._queue) >= _MOST_BATCHES

  def _take(self, shape: batch_queue.Shape) -> NestedMap:
    found = self._queue.pop(shape, 1)
    if found:
      return found[0].batch
    if not self.num_weightless:
      logging.info(
        '%s: hosts feed the shape that most of them have ready; a host that has'
        ' no batch of it feeds rows of weight 0, and its own ones later'
        ' (input/weightless_batches counts them)',
        self._name,
      )
    self.num_weightless += 1
    return batch_queue.zero_weight_batch(self._like, shape)


def _plan(counts_of_hosts: Sequence[str], *, draw: random.Random) -> str:
  """Returns the shapes of the next steps, as JSON.

  >>> hosts = [{'10': 2, '20': 1}, {'10': 1, '20': 1}]
  >>> _plan([json.dumps(h) for h in hosts], draw=random.Random(1))
  '["10", "20", "10"]'

  Args:
    counts_of_hosts: for each host the number of batches that it has of each
      shape, as JSON. A host has none only at the end of its data.
    draw: chooses among shapes that equally many hosts have.

  Returns:
    A list; empty if no host has a batch.
  """
  left = [collections.Counter(json.loads(text)) for text in counts_of_hosts]
  steps = []
  while len(steps) < _STEPS_OF_A_PLAN:
    hosts = collections.Counter(s for h in left for s, n in h.items() if n > 0)
    if not hosts:
      break
    total = sum(left, collections.Counter())
    best = [s for s in sorted(hosts) if hosts[s] == max(hosts.values())]
    [shape] = draw.choices(best, [total[s] for s in best])
    for counts in left:
      counts[shape] -= 1
    left = [+counts for counts in left]
    steps.append(shape)
  return json.dumps(steps)
