"""Lingvo inputs in smaller batches than the generator's.

Legend: B examples in a batch.
"""

from collections.abc import Iterator

import jax

from adaptors.lingvo_input import generator as generators
from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat import errors
from pax_compat.nested_map import NestedMap


class LingvoInputAdaptorNewBatchSize(input_adaptor.LingvoInputAdaptor):
  """Splits the batches of a Lingvo input into batches of `batch_size` examples.

  For inputs that need large batches, such as to pack well. `num_batches` counts
  the small ones.

  Attributes:
    batch_size: examples in a batch; required. The size of the generator's
      batches is a multiple of it.

  Raises:
    UserError: the fields do not go together, or the size of a batch of the
      generator is not a multiple of `batch_size`.
  """

  def _check_batch_size(self):
    if self.batch_size is None:
      raise errors.UserError(
        f'{self._label}: batch_size is None; expected the number of'
        ' examples in a batch'
      )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns the number of examples of one process in a batch."""
    return params.batch_size

  def _batches(self) -> '_SplitBatches':
    return _SplitBatches(
      self._label, super()._batches(), self._generator, self.batch_size
    )


class _SplitBatches:
  """Batches of a generator, split into batches of B examples."""

  def __init__(
    self,
    label: str,
    batches: generators.BucketBatches,
    generator: generators.Generator,
    batch_size: int,
  ):
    self._label = label
    self._large = batches
    self._generator = generator
    self._size = batch_size
    self._small: Iterator[NestedMap] = iter(())

  def next(self) -> NestedMap:
    """Returns the next batch; StopIteration at the end of the data."""
    for batch in self._small:
      return batch
    self._small = iter(self._split(self._large.next()))
    return next(self._small)

  def skip(self):
    """Skips a batch; StopIteration at the end of the data."""
    self.next()

  def _split(self, batch: NestedMap) -> list[NestedMap]:
    rows = bucket_shapes.batch_rows(batch)
    if not rows or rows % self._size:
      shapes = {k: x.shape for k, x in batch.flatten_items()}
      raise errors.UserError(
        f'{self._label}: batch_size is {self._size}, and a batch of'
        f' the generator has {rows or "no common number of"} examples; expected'
        f' a multiple: {shapes}'
      )
    self._generator.driver().steps_per_batch = rows // self._size
    self._generator.log_once(
      'batches of %d examples are split into batches of %d', rows, self._size
    )
    return [
      jax.tree.map(lambda x, i=i: x[i : i + self._size], batch)
      for i in range(0, rows, self._size)
    ]
