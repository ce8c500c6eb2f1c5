"""Which leaves of an optimizer's state belong to which weight.

Transformations keep the state of weights in trees like that of the weights:
nested dicts with the same keys. A subtree of the state with these keys belongs
to the weights, key by key; other leaves, such as counts, belong to no weight.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey

from pax_compat import optimizers
from pax_compat.learners.variable_names import path_name


class Owner(NamedTuple):
  """The weight that a leaf belongs to.

  Attributes:
    path: path of the weight.
    field: name of the last attribute in the leaf's path; '' for none.
  """

  path: str
  field: str


def owners(state: Any, weights: dict[str, Any]) -> list[Owner | None]:
  """Returns the owner of each leaf of a state, in the order of its leaves.

  Args:
    state: state of an optax transformation.
    weights: the nested dicts of its weights (of any kind, also masked ones).
  """
  nodes, _ = jax.tree_util.tree_flatten_with_path(
    state, is_leaf=lambda x: _is_like(weights, x)
  )
  result: list[Owner | None] = []
  for start, node in nodes:
    belongs = isinstance(node, dict)  # all other nodes are leaves
    for path, _ in jax.tree_util.tree_flatten_with_path(node)[0]:
      result.append(_owner(start, path, weights) if belongs else None)
  return result


def _is_like(weights: Any, tree: Any) -> bool:
  """Whether a tree has the keys of dicts of weights, with anything below."""
  if not isinstance(weights, dict):
    return True
  return (
    isinstance(tree, dict)
    and tree.keys() == weights.keys()
    and all(_is_like(weights[key], tree[key]) for key in weights)
  )


def _owner(start, path, weights) -> Owner:
  attributes = [k.name for k in (*start, *path) if isinstance(k, GetAttrKey)]
  node, depth = weights, 0
  while isinstance(node, dict):
    node, depth = node[path[depth].key], depth + 1
  return Owner(path_name(path[:depth]), attributes[-1] if attributes else '')


def leaf_sharding(
  shape: Sequence[int],
  weight: jax.ShapeDtypeStruct,
  stacked_dims: int,
  field: str,
  optimizer: optimizers.BaseOptimizer,
) -> NamedSharding | None:
  """Returns the sharding of a leaf that belongs to a weight.

  A leaf of the weight's shape is sharded like it, also if some of its sizes are
  1 instead; a leaf without one dimension is sharded like the other dimensions
  of the weight; any other leaf is replicated, except for its stacked
  dimensions, unless the optimizer has its spec.

  Args:
    shape: shape of the leaf.
    weight: with its sharding; if it has none, the leaf has none.
    stacked_dims: how many leading dimensions of both are stacked layers.
    field: see `Owner`.
    optimizer: knows the leaves of other shapes.
  """
  if weight.sharding is None:
    return None
  entries = tuple(weight.sharding.spec)
  entries += (None,) * (len(weight.shape) - len(entries))
  stacked, own = entries[:stacked_dims], entries[stacked_dims:]
  of_weight = tuple(weight.shape)[stacked_dims:]
  of_leaf = tuple(shape)[stacked_dims:]
  spec: Sequence[Any] = ()
  own_spec = optimizer.own_spec(field, of_leaf, weight.sharding.mesh)
  if own_spec is not None:
    spec = own_spec
  elif len(of_leaf) == len(of_weight):
    if all(n in (m, 1) for n, m in zip(of_leaf, of_weight, strict=True)):
      spec = [
        entry if n == m else None
        for entry, n, m in zip(own, of_leaf, of_weight, strict=True)
      ]
  elif len(of_leaf) == len(of_weight) - 1:
    dim = optimizer.reduced_dim(field, of_weight, of_leaf)
    # A weight without such a leaf can have an array [1] instead.
    if dim is not None and of_leaf == of_weight[:dim] + of_weight[dim + 1 :]:
      spec = own[:dim] + own[dim + 1 :]
  return NamedSharding(weight.sharding.mesh, PartitionSpec(*stacked, *spec))
