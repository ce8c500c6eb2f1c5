"""Prints as JSON what a thousand prefetchers leave behind.

It runs in a separate process, in which nothing else comes or goes.
"""

import json

import numpy as np

from pax_compat import base_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning
from pax_compat.trainer.feeding import agreement, pipeline, prefetching
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


def prefetch_and_close(how: int, sharding):
  """Prefetches a new input; takes nothing, a batch, or meets an error."""
  data = FileInput()

  def put(batch):
    return partitioning.global_batch(batch, sharding)

  try:
    if how == 2:
      data.get_next = read_a_broken_file
    stages = pipeline.stages(
      data, put=put, rows=agreement.ReplicaRowCheck(data)
    )
    with prefetching.Prefetcher(pipeline.Pipeline(stages)) as prefetcher:
      if how:
        next(iter(prefetcher))
  except OSError:
    assert how == 2
  finally:
    data.close()


def main():
  """Compares what is held after many feeders to what was after some."""
  sharding = partitioning.batch_sharding(partitioning.create_mesh(None, None))
  for cycle in range(60):
    prefetch_and_close(cycle % 3, sharding)
  before = resources.held()
  for cycle in range(1000):
    prefetch_and_close(cycle % 3, sharding)
  print(json.dumps(resources.held().more_than(before)._asdict()))


if __name__ == '__main__':
  main()
