"""Feeds a Lingvo input in smaller batches than its own.

Legend: B examples in a batch.
"""

import jax

from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat import errors
from pax_compat.nested_map import NestedMap


class LingvoInputAdaptorNewBatchSize(input_adaptor.LingvoInputAdaptor):
  """Cuts the batches of a Lingvo input into several of `batch_size` examples.

  For inputs that want large batches for a reason of their own, such as to pack
  well. `num_batches` counts the small ones.

  Attributes:
    batch_size: examples in a batch; required. The generator's batches have a
      multiple of it.

  Raises:
    UserError: the fields do not go together, or a batch of the generator has no
      multiple of `batch_size` examples.
  """

  def __post_init__(self):
    self._rest = None
    super().__post_init__()

  def _check_batch_size(self):
    if self.batch_size is None:
      raise errors.UserError(
        f'{self._told_name()}: batch_size is None; expected the number of'
        ' examples in a batch'
      )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns how many examples of one process a batch has."""
    return params.batch_size

  def _next_batch(self) -> NestedMap:
    if self._rest is None:
      self._rest = iter(self._cut(super()._next_batch()))
    batch = next(self._rest, None)
    if batch is None:
      self._rest = None
      return self._next_batch()
    return batch

  def _skip(self, count: int) -> int:
    for skipped in range(count):
      try:
        self._next_batch()
      except StopIteration:
        return skipped
    return count

  def _cut(self, batch: NestedMap) -> list[NestedMap]:
    """Returns a batch in pieces of B examples each."""
    rows = bucket_shapes.batch_rows(batch)
    if not rows or rows % self.batch_size:
      shapes = {k: x.shape for k, x in batch.flatten_items()}
      raise errors.UserError(
        f'{self._told_name()}: batch_size is {self.batch_size}, and a batch of'
        f' the generator has {rows or "no common number of"} examples; expected'
        f' a multiple: {shapes}'
      )
    self._live_driver().steps_per_batch = rows // self.batch_size
    self._log_once(
      'batches of %d examples are cut into such of %d', rows, self.batch_size
    )
    return [
      jax.tree.map(lambda x, i=i: x[i : i + self.batch_size], batch)
      for i in range(0, rows, self.batch_size)
    ]

  def _free(self):
    super()._free()
    self._rest = None
