"""`--enable_auto_sharding`: data parallel and fully sharded.

The default that needs no knowledge of a model. All devices of a slice are on
the mesh axis `data`, over which batches are split, and each large weight too:
along its largest dimension that the devices divide. Slices are replicas. The
axes of the experiment's own mesh remain, with one device each, so that its
mappings remain valid.

With `task.train.tensor_parallel` that many devices of a slice are on the axis
`mdl` instead. Large weights are split over it as well: those of attention along
the heads, others along their largest dimension, which is the hidden one of a
feed-forward layer and the vocabulary of an embedding.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from pax_compat import base_layer, errors
from pax_compat.layer_core import sharding as sharding_lib

AXIS, TENSOR_AXIS, _REPLICA = 'data', 'mdl', 'replica'
# Smaller weights, such as biases, are replicated: gathering them costs more
# than their memory.
_LEAST_ELEMENTS = 4096


def shapes_of_mesh(
  names: Any, count: int, slices: int, tensor_parallel: int = 1
) -> tuple[list[int], list[int], list[str]]:
  """Returns `ici_mesh_shape`, `dcn_mesh_shape` and `mesh_axis_names`.

  Args:
    names: of the axes of the model's own mesh; None without one.
    count: number of devices.
    slices: number of slices.
    tensor_parallel: number of devices on the axis `mdl`.

  Raises:
    UserError: no axis is called `data`, or `tensor_parallel` does not divide
      the devices of a slice.
  """
  names = list(names or (AXIS,))
  if AXIS not in names:
    raise errors.UserError(
      f'auto sharding needs a mesh axis {AXIS!r}; the axes of the model are'
      f' {", ".join(names)}'
    )
  of_slice = count // slices
  if of_slice % tensor_parallel:
    raise errors.UserError(
      f'task.train.tensor_parallel is {tensor_parallel}; expected a divisor of'
      f' {of_slice}, the number of devices{" of a slice" * (slices > 1)}'
    )
  if tensor_parallel > 1 and TENSOR_AXIS not in names:
    names.append(TENSOR_AXIS)
  within = {AXIS: of_slice // tensor_parallel, TENSOR_AXIS: tensor_parallel}
  over_slices = _REPLICA if _REPLICA in names else AXIS
  return (
    [within.get(name, 1) for name in names],
    [slices if name == over_slices else 1 for name in names],
    names,
  )


def fully_sharded(mesh: Mesh | AbstractMesh, boxed: Any) -> Any:
  """Returns boxed weights, of which the large ones are split.

  They are split over `mdl`, if it has several devices, and over `data`. Those
  that their own mapping splits over an axis are not split over it again.

  Args:
    mesh: the mesh.
    boxed: the weights, by collection.
  """

  def split(x):
    if not base_layer.is_boxed(x):
      return x
    mapping = _mapping(mesh, x.meta)
    return x.replace(
      meta=dataclasses.replace(x.meta, tensor_split_dims_mapping=mapping)
    )

  return jax.tree.map(split, boxed, is_leaf=base_layer.is_boxed)


def _mapping(mesh: Mesh | AbstractMesh, weight: base_layer.WeightHParams):
  """Returns the split mapping of a weight."""
  mapping, shape = weight.tensor_split_dims_mapping, weight.shape
  entries = [
    list(sharding_lib.axes_of(entry))
    for entry in (mapping or [None] * len(shape))
  ]
  first = len(weight.repeat_prefix)
  if math.prod(shape[first:]) < _LEAST_ELEMENTS:
    return mapping
  every = range(first, len(shape))
  heads = every if weight.heads_dim is None else (weight.heads_dim,)
  is_changed = False
  for axis, dims in ((TENSOR_AXIS, heads), (AXIS, every)):
    is_changed |= _split(mesh, axis, shape, entries, dims)
  if not is_changed:
    return mapping
  return tuple(tuple(axes) or None for axes in entries)


def _split(
  mesh: Mesh | AbstractMesh,
  axis: str,
  shape: Sequence[int],
  entries: list[list[str]],
  dims: Iterable[int],
) -> bool:
  """Splits one dimension of a weight over an axis; returns whether it did.

  It is the one with the largest part that the axis divides; of equal ones one
  that is whole, and of these the last, if the axis is `mdl`, else the first.

  Args:
    mesh: the mesh.
    axis: the name of the axis.
    shape: of the weight.
    entries: the axes that each dimension is split over; the axis is added.
    dims: the dimensions to choose from.
  """
  size = mesh.shape.get(axis, 1)
  is_split = any(axis in axes for axes in entries)
  if is_split or (axis == TENSOR_AXIS and size == 1):
    return False
  parts = {}
  for dim in dims:
    count = math.prod(mesh.shape[axis] for axis in entries[dim])
    if shape[dim] % (count * size) == 0:
      parts[dim] = (shape[dim] // count, -count)
  if not parts:
    return False
  ordered = sorted(parts, reverse=axis == TENSOR_AXIS)
  entries[max(ordered, key=parts.__getitem__)].append(axis)
  return True
