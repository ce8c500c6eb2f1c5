"""Which leaves of a Lingvo batch become arrays, and how."""

from typing import Any

import numpy as np

from pax_compat.nested_map import NestedMap


def kept_leaves(
  tf: Any, batch: Any, *, keeps_strings: bool
) -> tuple[Any, list]:
  """Returns a symbolic batch as NestedMaps, and the paths that are left out.

  Args:
    tf: TensorFlow.
    batch: maps, lists and tensors.
    keeps_strings: whether string leaves are kept. Sparse and ragged ones never
      are.
  """
  dropped = []

  def is_kept(leaf) -> bool:
    if not isinstance(leaf, (tf.Tensor, tf.Variable)):
      return False
    return keeps_strings or leaf.dtype != tf.string

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


def unflatten(structure: Any, leaves: list) -> Any:
  """Returns leaves in a structure.

  >>> unflatten(NestedMap(a=1, b=[0]), ['x', 'y'])
  {'a': 'y', 'b': ['x']}

  Args:
    structure: maps and lists of indices into `leaves`.
    leaves: by index.
  """
  # Ten times as fast as `jax.tree.unflatten`, whose code is in no cache when a
  # batch comes.
  if isinstance(structure, int):
    return leaves[structure]
  if isinstance(structure, dict):
    return NestedMap({k: unflatten(v, leaves) for k, v in structure.items()})
  if structure is None:
    return None
  return [unflatten(v, leaves) for v in structure]


def as_array(leaf: Any) -> Any:
  """Returns a leaf as TensorFlow returns it as an array."""
  # A single string comes as plain bytes.
  return np.array(leaf, object) if isinstance(leaf, bytes) else leaf
