"""An evaluation holds a few batches, however many examples there are."""

import weakref

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors
from tests import resources
from tests.adaptors.lingvo_input import generators as testing

COUNT = 200_000
# Of an example; all of them together have 195 MiB.
_BYTES = 1024
_MOST = 60 << 20


def _wide(count: int, repeat: bool):
  """Returns Params of a tf.data input of examples of a kilobyte."""
  tf = lingvo_runtime.module('tensorflow')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  sources = lingvo_runtime.module('lingvo.core.datasource')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class Source(sources.TFDatasetSource):
    def GetDataset(self):  # noqa: N802
      firsts = tf.data.Dataset.range(0, count, 500)
      if repeat:
        firsts = firsts.repeat()

      def batch(first):
        x = tf.range(first, tf.minimum(first + 500, count))
        wide = tf.tile(x[:, None], [1, _BYTES // 8])
        return py_utils.NestedMap(wide=wide)

      return firsts.map(batch)

  return generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params()
  )


@pytest.mark.parametrize('by_count', [False, True])
def test_memory_does_not_grow_with_the_data(by_count):
  params = _wide(COUNT, repeat=by_count)
  if by_count:
    params.Set(batch_size=64, num_samples=COUNT)
    cls, fields = eval_adaptors.LingvoLazyEvalAdaptor, {}
  else:
    cls, fields = eval_adaptors.LingvoEvalAdaptor, {'batch_size': 64}
  data = cls(
    input=params,
    reset_for_eval=True,
    num_infeed_hosts=2,
    infeed_host_index=1,
    **fields,
  )
  data.get_next()
  before = most = resources.held().resident
  seen = 64.0
  for number, batch in enumerate(iter(data.get_next_padded, None)):
    seen += batch.eval_sample_weights.sum()
    if number % 100 == 0:
      most = max(most, resources.resident())
    if not batch.eval_sample_weights.all():
      break
  # Of the last 64 of 200,000 = 1562 * 128 + 64 this host has none.
  assert seen == 1562 * 64
  assert data.num_samples == COUNT or not testing.drain(data)
  data.close()
  assert most - before < _MOST


class _Watched(eval_adaptors.LingvoEvalAdaptor):
  """Counts the reader's arrays that are still there.

  Attributes:
    alive: how many there are.
    most: how many there have ever been.
  """

  alive = 0
  most = 0

  def _read(self):
    # Arrays that own their memory, so that a view keeps them.
    batch = jax.tree.map(np.array, super()._read())
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
