"""An optimizer of Lingvo's that collects the gradients of several batches."""

import contextlib
import sys
import types

import pytest

from adaptors import lingvo_runtime

_STOCK = 'lingvo.tasks.lm.params.synthetic_packed_input'


class _Counter:
  """Lingvo's count of batches, which is raised after it was read.

  In a graph Lingvo leaves the order of the two open, so that now and then it
  updates the weights a batch too late.
  """

  def __init__(self, variable):
    self._variable = variable
    self._read = None
    self.dtype = variable.dtype

  def __add__(self, number):
    self._read = self._variable.read_value()
    return self._read + number

  def assign_add(self, number):
    tf = lingvo_runtime.module('lingvo.compat')
    with tf.control_dependencies([self._read]):
      return self._variable.assign_add(number)


@contextlib.contextmanager
def sharded_adam():
  """Yields Params of the stock class, less a sum over the one device."""
  module = lingvo_runtime.module('lingvo.core.optimizer')

  class InOrder(module.GradientAggregationOptimizer):
    """The same without the race."""

    def _create_slots(self, var_list):
      super()._create_slots(var_list)
      if not isinstance(self._counter, _Counter):
        self._counter = _Counter(self._counter)

  class ShardedAdam(module.Adam):
    """Adam that collects the gradients of several batches."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('num_micro_batches', 1, 'Of one update.')
      return p

    def GetOptimizer(self, lr):
      made = super().GetOptimizer(lr)
      count = self.params.num_micro_batches
      return InOrder(made, count)

  ShardedAdam.__module__ = _STOCK
  ShardedAdam.__qualname__ = 'ShardedAdam'
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, _STOCK, types.ModuleType(_STOCK))
    yield ShardedAdam.Params().Set(num_micro_batches=2, epsilon=1e-3)
