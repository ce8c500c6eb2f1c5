"""The sharding of weights, also where mesh axes do not divide a dimension.

JAX has no arrays of uneven shards, but XLA computes with them: it pads them
within a program. So a weight [V, D] whose V is to be split over 4 devices that
do not divide it is stored with that axis at D instead: the same bytes per
device, without padding. At the start of a step the weight gets the sharding
that was asked for, by an all-to-all over that axis; its gradient goes the other
way. Shapes, numbers and checkpoints are those of the weight without a mesh.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pax_compat import base_layer, learners
from pax_compat.layer_core import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Moved:
  """A mesh axis that does not divide the dimension that it is to split.

  Attributes:
    axis: the mesh axis.
    shards: devices along it.
    size: of the dimension.
    to_size: of the dimension that it splits instead in the stored weight; None
      if none fits, so that the devices of the axis store copies.
  """

  axis: str
  shards: int
  size: int
  to_size: int | None

  def __str__(self) -> str:
    stored = (
      f'its {self.shards} devices store copies'
      if self.to_size is None
      else f'stored split along {self.to_size:,} instead'
    )
    return (
      f'a dimension of {self.size:,} is not a multiple of the shards of'
      f' {self.axis}; {stored}'
    )


@dataclasses.dataclass(frozen=True)
class WeightSplit:
  """How a weight is split over the mesh.

  Attributes:
    stored: the sharding of the stored weight, whose shards are even.
    in_step: the sharding that was asked for, which a step computes with; the
      shards may be uneven.
    moved: the axes in which the two differ.
  """

  stored: NamedSharding
  in_step: PartitionSpec
  moved: tuple[Moved, ...]


def weight_sharding(
  mesh: Mesh | AbstractMesh, weight: base_layer.WeightHParams
) -> NamedSharding:
  """Returns the sharding of a stored weight; see `weight_split`."""
  return weight_split(mesh, weight).stored


def weight_split(
  mesh: Mesh | AbstractMesh, weight: base_layer.WeightHParams
) -> WeightSplit:
  """Returns how a weight is split, by its `tensor_split_dims_mapping`.

  Raises:
    UserError: the mapping names an axis that is not in the mesh, or its length
      is not the weight's number of dimensions.
  """
  spec = sharding_lib.partition_spec(
    weight.tensor_split_dims_mapping,
    weight.shape,
    mesh.axis_names,
    where=f'a weight of shape {list(weight.shape)}',
  )
  stored, moved = _even(
    spec, weight.shape, mesh.shape, first=len(weight.repeat_prefix)
  )
  return WeightSplit(NamedSharding(mesh, stored), spec, moved)


def even_spec(
  spec: PartitionSpec, shape: Sequence[int], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
  """Returns the spec without the axes that do not divide their dimension."""
  entries, _ = _divided(spec, shape, mesh.shape)
  return _spec(entries)


def _even(
  spec: PartitionSpec,
  shape: Sequence[int],
  sizes: Mapping[str, int],
  *,
  first: int,
) -> tuple[PartitionSpec, tuple[Moved, ...]]:
  """Returns a spec of even shards, and the axes that it has moved.

  Args:
    spec: the spec.
    shape: of the array.
    sizes: devices along each mesh axis.
    first: the first dimension that axes may be moved to. Those before are of
      stacked layers, of which a step needs one at a time.
  """
  entries, rest = _divided(spec, shape, sizes)
  moved = []
  for origin, axis in rest:
    fitting = {
      dim: shape[dim] // _shards(entries[dim], sizes)
      for dim in range(first, len(shape))
      if dim != origin
      and shape[dim] % (_shards(entries[dim], sizes) * sizes[axis]) == 0
    }
    to = max(fitting, key=fitting.__getitem__, default=None)
    if to is not None:
      entries[to].append(axis)
    to_size = None if to is None else shape[to]
    moved.append(Moved(axis, sizes[axis], shape[origin], to_size))
  return (_spec(entries) if moved else spec), tuple(moved)


def _divided(
  spec: PartitionSpec, shape: Sequence[int], sizes: Mapping[str, int]
) -> tuple[list[list[str]], list[tuple[int, str]]]:
  """Returns the axes that divide each dimension; the others, with their dim."""
  entries: list[list[str]] = [[] for _ in shape]
  rest = []
  for dim, entry in enumerate(spec):
    for axis in sharding_lib.axes_of(entry):
      if shape[dim] % (_shards(entries[dim], sizes) * sizes[axis]) == 0:
        entries[dim].append(axis)
      else:
        rest.append((dim, axis))
  return entries, rest


def _shards(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
  return math.prod(sizes[axis] for axis in axes)


def _spec(entries: Iterable[Sequence[str]]) -> PartitionSpec:
  return PartitionSpec(*(tuple(axes) or None for axes in entries))


def moved_splits(mesh: Mesh, boxed: Any) -> dict[str, WeightSplit]:
  """Returns how the weights of a tree are split that have `moved` axes.

  Args:
    mesh: the mesh.
    boxed: boxed weights, by collection.

  Returns:
    By path, with the collection.
  """
  boxes = learners.by_path(boxed, is_leaf=base_layer.is_boxed)
  splits = {
    path: weight_split(mesh, box.meta)
    for path, box in boxes.items()
    if base_layer.is_boxed(box)
  }
  return {path: split for path, split in splits.items() if split.moved}


def as_in_step(variables: Any, moved: Mapping[str, WeightSplit]) -> Any:
  """Returns variables with the shardings that a step computes with.

  Called while a step is traced for the mesh.

  Args:
    variables: arrays, by collection.
    moved: see `moved_splits`.
  """

  def constrained(path, x):
    split = moved.get(learners.path_name(path))
    if split is None:
      return x
    return jax.lax.with_sharding_constraint(x, split.in_step)

  if not moved:
    return variables
  return jax.tree_util.tree_map_with_path(constrained, variables)
