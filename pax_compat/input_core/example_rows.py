"""Example weights and padding rows of a batch.

Legend: B rows of a batch.
"""

from typing import Any

import jax
import numpy as np

from pax_compat.nested_map import NestedMap

# The field of example weights, [B].
WEIGHTS = 'eval_sample_weights'
# Fields with the weights of examples or positions.
_ALL_WEIGHTS = ('weights', 'weight', WEIGHTS)


def _last_name(path: Any) -> str:
  key = path[-1]
  return str(getattr(key, 'key', getattr(key, 'idx', key)))


def is_weight(path: Any) -> bool:
  """Returns whether a leaf, by its name, has weights of rows or positions."""
  return _last_name(path) in _ALL_WEIGHTS


def is_padding(path: Any) -> bool:
  """Returns whether a leaf, by its name, has paddings: 1 at padding."""
  return _last_name(path).endswith('paddings')


def num_rows(batch: Any) -> int:
  """Returns B of leaves [B, ...]; scalars are skipped."""
  return next(x.shape[0] for x in jax.tree.leaves(batch) if x.ndim)


def padding_value(path: Any) -> int:
  """Returns the value of a numeric leaf, by its name, at padding positions."""
  return 1 if is_padding(path) else 0


def with_example_weights(batch: NestedMap, rows: int) -> NestedMap:
  """Returns the batch with example weights: 1 for each row, if it has none."""
  if WEIGHTS in batch:
    return batch
  return NestedMap({**batch, WEIGHTS: np.ones(rows, np.float32)})


def zero_weight(batch: NestedMap) -> NestedMap:
  """Returns the batch with all weights 0 and all paddings 1."""

  def change(path, x):
    if is_weight(path):
      return np.zeros_like(x)
    return np.ones_like(x) if is_padding(path) else x

  return jax.tree_util.tree_map_with_path(change, batch)


def padding_rows(example: NestedMap, count: int) -> NestedMap:
  """Returns `count` copies of an example [1, ...], with weight 0."""
  blank = zero_weight(example)
  return jax.tree.map(lambda x: np.repeat(x, count, axis=0), blank)


def without_padding_rows(batch: Any) -> Any:
  """Returns a batch without the rows of weight 0 at its end.

  A batch of such rows only, or without example weights, is returned as it is.

  Args:
    batch: leaves [B, ...], nested.
  """
  leaves = jax.tree_util.tree_leaves_with_path(batch)
  weights = [x for path, x in leaves if _last_name(path) == WEIGHTS]
  if not weights:
    return batch
  real = int(np.max(np.flatnonzero(weights[0]), initial=-1)) + 1
  rows = len(weights[0])
  if real in (0, rows):
    return batch
  return jax.tree.map(
    lambda x: x[:real] if x.ndim and len(x) == rows else x, batch
  )


def pad_batch(batch: NestedMap, *, real: int, rows: int) -> NestedMap:
  """Returns a batch of a given size: real rows, then padding rows.

  Args:
    batch: leaves [n, ...], n at least 1, with example weights.
    real: number of rows to keep, from the first on.
    rows: number of rows to return. The padding rows are copies of the first
      row, with weight 0.
  """
  if real == rows:
    return jax.tree.map(lambda x: x[:rows], batch)
  added = padding_rows(jax.tree.map(lambda x: x[:1], batch), rows - real)
  return jax.tree.map(lambda x, y: np.concatenate([x[:real], y]), batch, added)
