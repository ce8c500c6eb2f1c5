"""An evaluation holds a few batches, however many examples there are."""

import json
import weakref

import jax
import numpy as np
import pytest

from adaptors.lingvo_input import eval_adaptors
from tests.adaptors.lingvo_input import generators as testing
from tests.pax_compat import trainer_runs

# The data has 195 MiB.
_MOST = 60 << 20


@pytest.mark.parametrize('by_count', [False, True])
def test_memory_does_not_grow_with_the_data(by_count):
  done = trainer_runs.forked(
    '-m', 'tests.adaptors.lingvo_input.eval_memory', str(by_count)
  )
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout.splitlines()[-1]) < _MOST


class _Watched(eval_adaptors.LingvoEvalAdaptor):
  """Counts the reader's arrays that are still there.

  Attributes:
    alive: how many there are.
    most: how many there have ever been.
  """

  alive = 0
  most = 0

  def __post_init__(self):
    super().__post_init__()
    self._read = self._generator.next
    self._generator.next = self._watched

  def _watched(self):
    # Arrays that own their memory, so that a view keeps them.
    batch = jax.tree.map(np.array, self._read())
    for leaf in jax.tree.leaves(batch):
      self.alive += 1
      weakref.finalize(leaf, self._gone)
    self.most = max(self.most, self.alive)
    return batch

  def _gone(self):
    self.alive -= 1


def test_batches_of_the_reader_are_let_go():
  data = _Watched(
    input=testing.numbers(2000), batch_size=100, reset_for_eval=True
  )
  assert len(testing.drain(data)) == 20
  # Two leaves of the batch that is read, and of the one before.
  assert data.most <= 4
  data.close()
