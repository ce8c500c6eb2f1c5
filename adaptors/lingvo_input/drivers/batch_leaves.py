"""Which leaves of a Lingvo batch become arrays, and how."""

from typing import Any

import numpy as np

from pax_compat.nested_map import NestedMap


def kept_leaves(tf: Any, batch: Any, *, keeps_texts: bool) -> tuple[Any, list]:
  """Returns a symbolic batch as our maps, and the paths of what is left out.

  Args:
    tf: TensorFlow.
    batch: maps, lists and tensors.
    keeps_texts: whether leaves of strings stay. Sparse and ragged ones never
      do.
  """
  dropped = []

  def is_kept(leaf) -> bool:
    if not isinstance(leaf, (tf.Tensor, tf.Variable)):
      return False
    return keeps_texts or leaf.dtype != tf.string

  def keep(node, path: str):
    if isinstance(node, dict):
      kept = {k: keep(v, f'{path}.{k}' if path else k) for k, v in node.items()}
      return NestedMap({k: v for k, v in kept.items() if v is not None})
    if isinstance(node, (list, tuple)):
      kept = [keep(v, f'{path}[{i}]') for i, v in enumerate(node)]
      return [v for v in kept if v is not None]
    if node is None or is_kept(node):
      return node
    dropped.append(path)
    return None

  return keep(batch, ''), dropped


def placed(places: Any, leaves: list) -> Any:
  """Returns leaves in a structure.

  Args:
    places: maps and lists of the leaves' numbers.
    leaves: by their numbers.
  """
  # What `jax.tree` goes through is in no cache when a batch comes: it would
  # take ten times as long.
  if isinstance(places, int):
    return leaves[places]
  if isinstance(places, dict):
    return NestedMap({k: placed(v, leaves) for k, v in places.items()})
  return places if places is None else [placed(v, leaves) for v in places]


def as_array(leaf: Any) -> Any:
  """Returns what TensorFlow gives for one leaf as an array."""
  # It gives the bytes alone for a single string.
  return np.array(leaf, object) if isinstance(leaf, bytes) else leaf
