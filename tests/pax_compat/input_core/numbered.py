"""A small input for tests."""

import numpy as np

from pax_compat import base_input
from pax_compat.nested_map import NestedMap


class Numbered(base_input.BaseInput):
  """Batches of three rows, each with the batch's number.

  Attributes:
    weight: of the rows; None leaves it to others.
    has_state: whether the input has a state.
    count: number of batches.
  """

  weight: float | None = None
  has_state: bool = True
  count: int = 6

  def __post_init__(self):
    super().__post_init__()
    self._next = 0

  def get_next(self):
    if self._next == self.count:
      raise StopIteration
    batch = NestedMap(x=np.full([3, 2], self._next))
    if self.weight is not None:
      batch.eval_sample_weights = np.full([3], self.weight, np.float32)
    self._next += 1
    return batch

  def reset(self):
    self._next = 0

  def _get_state_internal(self):
    if not self.has_state:
      raise NotImplementedError
    return str(self._next).encode()

  def _set_state_internal(self, state):
    self._next = int(state)
