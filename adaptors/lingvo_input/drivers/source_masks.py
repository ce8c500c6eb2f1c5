"""The data source of each batch, for learners that depend on it.

Legend: B batch, S data sources.
"""

from typing import Any

from adaptors import lingvo_runtime
from pax_compat.learners import SOURCE_SELECTED


def are_needed(generator: Any) -> bool:
  """Whether the data sources of a generator train different variables."""
  return any(generator.GetBpropVariableFilters())


def with_source(generator: Any, batch: Any) -> Any:
  """Returns a symbolic batch with the one-hot index of its data source.

  Args:
    generator: a Lingvo input generator, which has just made the batch.
    batch: its NestedMap, with leaves [B, ...].

  Returns:
    The batch with `source_selected` [B, S], ones at the source of all rows.
  """
  if SOURCE_SELECTED in batch:
    return batch
  tf = lingvo_runtime.module('tensorflow')
  rows = next(x for x in batch.Flatten() if x.shape.rank != 0)
  source = generator.GetInputSourceOneHot()
  batch[SOURCE_SELECTED] = tf.tile(source[tf.newaxis], [tf.shape(rows)[0], 1])
  return batch
