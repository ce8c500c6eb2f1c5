"""`--enable_auto_sharding`: data parallel and fully sharded.

The default that needs no knowledge of a model. All devices of a slice are on
the mesh axis `data`, over which batches are split, and each large weight too:
along its largest dimension that the devices divide. Slices are replicas. The
axes of the experiment's own mesh remain, with one device each, so that its
mappings remain valid.
"""

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from pax_compat import base_layer, errors
from pax_compat.layer_core import sharding as sharding_lib

AXIS, _REPLICA = 'data', 'replica'
# Smaller weights, such as biases, are replicated: gathering them costs more
# than their memory.
_LEAST_ELEMENTS = 4096


def shapes_of_mesh(
  names: Any, count: int, slices: int
) -> tuple[list[int], list[int], list[str]]:
  """Returns `ici_mesh_shape`, `dcn_mesh_shape` and `mesh_axis_names`.

  Args:
    names: of the axes of the model's own mesh; None without one.
    count: number of devices.
    slices: number of slices.

  Raises:
    UserError: no axis is called `data`.
  """
  names = list(names or (AXIS,))
  if AXIS not in names:
    raise errors.UserError(
      f'auto sharding needs a mesh axis {AXIS!r}; the axes of the model are'
      f' {", ".join(names)}'
    )
  over_slices = _REPLICA if _REPLICA in names else AXIS
  return (
    [count // slices if name == AXIS else 1 for name in names],
    [slices if name == over_slices else 1 for name in names],
    names,
  )


def fully_sharded(mesh: Mesh | AbstractMesh, boxed: Any) -> Any:
  """Returns boxed weights, of which the large ones are split over `data`.

  Those that their own mapping splits over it are not changed.

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
  each_layer = math.prod(shape[first:])
  is_split = any(AXIS in axes for axes in entries)
  if is_split or each_layer < _LEAST_ELEMENTS:
    return mapping
  sizes = {
    dim: shape[dim]
    for dim in range(first, len(shape))
    if shape[dim]
    % (mesh.shape[AXIS] * math.prod(mesh.shape[axis] for axis in entries[dim]))
    == 0
  }
  if not sizes:
    return mapping
  entries[max(sizes, key=sizes.__getitem__)].append(AXIS)
  return tuple(tuple(axes) or None for axes in entries)
