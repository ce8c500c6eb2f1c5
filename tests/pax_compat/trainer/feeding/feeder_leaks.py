"""Tells as JSON what a thousand feeders leave behind.

In a process of its own nothing else comes or goes meanwhile.
"""

import json

import numpy as np

from pax_compat import base_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning
from pax_compat.trainer.feeding import prefetching
from tests import resources


class FileInput(base_input.BaseInput):
  """Reads batches of a quarter of a megabyte from a file."""

  path: str = '/dev/zero'

  def __post_init__(self):
    super().__post_init__()
    self._file = open(self.path, 'rb')

  def get_next(self):
    x = np.frombuffer(self._file.read(2**18), np.float32)
    return NestedMap(x=x.reshape(8, -1), text=np.array(['a'] * 8))

  def close(self):
    self._file.close()


def read_a_broken_file():
  """Raises."""
  raise OSError('broken file')


def feed_and_close(how: int, sharding):
  """Feeds from a new input: nothing is taken, a batch is, or there is none."""
  data = FileInput()

  def put(batch):
    return partitioning.global_batch(batch, sharding)

  try:
    with prefetching.Feeder(
      read_a_broken_file if how == 2 else data.get_next_padded,
      put,
      is_host_field=data.is_host_field,
    ) as feeder:
      if how:
        next(iter(feeder))
  except OSError:
    assert how == 2
  finally:
    data.close()


def main():
  """Compares what is held after many feeders to what was after some."""
  sharding = partitioning.batch_sharding(partitioning.create_mesh(None, None))
  for cycle in range(60):
    feed_and_close(cycle % 3, sharding)
  before = resources.held()
  for cycle in range(1000):
    feed_and_close(cycle % 3, sharding)
  print(json.dumps(resources.held().more_than(before)._asdict()))


if __name__ == '__main__':
  main()
