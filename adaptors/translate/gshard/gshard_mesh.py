"""Translates GShard's meshes and splits to named axes.

Lingvo numbers the axes of a device mesh; here they have names. A split has for
each dimension of an array the number of a mesh axis, or -1.

Legend of the names of splits: b or g batch or groups, l length, m model dims, h
heads or inner dims, d dims of a head, e experts, c slots of an expert, v
vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pax_compat.layer_core.sharding import SplitDimsMapping

# Names of the mesh axes by number. The first one usually shards the batch, and
# the trainer shards batches over this name.
AXES = ('data', 'mdl')


def mesh_shape(builder: Any) -> list[int] | None:
  """Returns the shape of a builder's mesh; None if it has one device."""
  mesh, shape = builder.device_mesh, builder.device_mesh_shape
  if shape is None:
    shape = None if mesh is None else np.shape(mesh)
  elif mesh is not None and list(np.shape(mesh)) != list(shape):
    builder.view.issue(
      'device_mesh_shape',
      f'{list(shape)} is not the shape of device_mesh, {list(np.shape(mesh))}',
    )
  if shape is None or np.prod(shape) == 1:
    return None
  if len(shape) > len(AXES):
    builder.view.issue(
      'device_mesh_shape',
      f'{list(shape)} has {len(shape)} axes; only {len(AXES)} are translated',
    )
    return None
  return list(map(int, shape))


def model_fields(builder: Any) -> dict[str, Sequence]:
  """Returns the mesh fields of a model; empty if there is one device.

  Args:
    builder: a `gshard_builder.Builder`.
  """
  shape = mesh_shape(builder)
  if shape is None:
    return {}
  return dict(ici_mesh_shape=shape, mesh_axis_names=list(AXES[: len(shape)]))


def split(builder: Any, field: str, rank: int) -> SplitDimsMapping:
  """Returns the sharding of an array; None if it is replicated.

  Args:
    builder: a `gshard_builder.Builder`.
    field: the builder's field with the split, such as 'blm_split'.
    rank: the number of dimensions of the array.
  """
  shape, mapping = mesh_shape(builder), getattr(builder, field)
  if shape is None or mapping is None:
    return None
  if len(mapping) != rank or not all(-1 <= i < len(shape) for i in mapping):
    builder.view.issue(
      field,
      f'{list(mapping)} does not split {rank} dimensions over a mesh of'
      f' {len(shape)} axes',
    )
    return None
  if all(i < 0 for i in mapping):
    return None
  return [None if i < 0 else AXES[i] for i in mapping]
