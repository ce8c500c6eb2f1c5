"""Rows of a batch that count, and rows that only fill it up.

Legend: B rows of a batch.
"""

from typing import Any

import jax
import numpy as np

from pax_compat.nested_map import NestedMap

# The field that says how much each example counts, [B].
WEIGHTS = 'eval_sample_weights'
# Fields that say how much an example or a position counts.
_ALL_WEIGHTS = ('weights', 'weight', WEIGHTS)


def _last_name(path: Any) -> str:
  key = path[-1]
  return str(getattr(key, 'key', getattr(key, 'idx', key)))


def is_weight(path: Any) -> bool:
  """Returns whether a leaf, by its name, weighs examples or positions."""
  return _last_name(path) in _ALL_WEIGHTS


def is_padding(path: Any) -> bool:
  """Returns whether a leaf, by its name, is 1 at what does not count."""
  return _last_name(path).endswith('paddings')


def num_rows(batch: Any) -> int:
  """Returns B of leaves [B, ...]; those without a dimension do not count."""
  return next(x.shape[0] for x in jax.tree.leaves(batch) if x.ndim)


def filler(path: Any) -> int:
  """Returns what a leaf of numbers, by its name, has where nothing counts."""
  return 1 if is_padding(path) else 0


def weighed(batch: NestedMap, rows: int) -> NestedMap:
  """Returns a batch that says how much its examples count: 1, if it did not."""
  if WEIGHTS in batch:
    return batch
  return NestedMap({**batch, WEIGHTS: np.ones(rows, np.float32)})


def without_weight(batch: NestedMap) -> NestedMap:
  """Returns a batch with weights of 0 and paddings of 1."""

  def change(path, x):
    if is_weight(path):
      return np.zeros_like(x)
    return np.ones_like(x) if is_padding(path) else x

  return jax.tree_util.tree_map_with_path(change, batch)


def fillers(example: NestedMap, count: int) -> NestedMap:
  """Returns `count` copies of an example [1, ...] that weigh nothing."""
  blank = without_weight(example)
  return jax.tree.map(lambda x: np.repeat(x, count, axis=0), blank)


def filled(batch: NestedMap, *, real: int, rows: int) -> NestedMap:
  """Returns a batch of some size, of which the first rows count.

  Args:
    batch: leaves [n, ...], n at least 1, with weights (see `weighed`).
    real: how many of its rows are to count, from the first on.
    rows: how many rows to return. What is missing are copies of the first row,
      which weigh nothing.
  """
  if real == rows:
    return jax.tree.map(lambda x: x[:rows], batch)
  added = fillers(jax.tree.map(lambda x: x[:1], batch), rows - real)
  return jax.tree.map(lambda x, y: np.concatenate([x[:real], y]), batch, added)
