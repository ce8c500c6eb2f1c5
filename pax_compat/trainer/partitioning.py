"""The device mesh, and what is split over it how."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pax_compat import base_layer, errors

# Mesh axes that a batch is split over, where the mesh has them.
BATCH_AXES = ('replica', 'data')


def create_mesh(
  ici_mesh_shape: Sequence[int] | None, mesh_axis_names: Sequence[str] | None
) -> Mesh:
  """Returns the mesh of all devices.

  Args:
    ici_mesh_shape: devices along each axis; None puts all of them on one axis,
      `data`.
    mesh_axis_names: the axes' names.

  Raises:
    UserError: the shape does not use up the devices, or has no names.
  """
  devices = jax.devices()
  if ici_mesh_shape is None and mesh_axis_names is not None:
    raise errors.UserError(
      f'mesh_axis_names {list(mesh_axis_names)} needs an ici_mesh_shape of'
      f' {len(mesh_axis_names)} numbers'
    )
  if ici_mesh_shape is None:
    ici_mesh_shape, mesh_axis_names = (len(devices),), ('data',)
  shape = tuple(ici_mesh_shape)
  if mesh_axis_names is None or len(mesh_axis_names) != len(shape):
    raise errors.UserError(
      f'ici_mesh_shape {list(shape)} needs {len(shape)} mesh_axis_names, got'
      f' {mesh_axis_names}'
    )
  if math.prod(shape) != len(devices):
    raise errors.UserError(
      f'ici_mesh_shape {list(shape)} is for {math.prod(shape)} devices; there'
      f' are {len(devices)}'
    )
  # Auto on purpose: under explicit axes, scanned and rematerialised flax
  # modules with sharding annotations do not trace.
  return jax.make_mesh(
    shape, tuple(mesh_axis_names), axis_types=(AxisType.Auto,) * len(shape)
  )


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of what every device holds whole."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays whose first axis is the batch."""
  axes = tuple(a for a in mesh.axis_names if a in BATCH_AXES)
  return NamedSharding(mesh, PartitionSpec(axes or None))


def weight_sharding(
  mesh: Mesh, weight: base_layer.WeightHParams
) -> NamedSharding:
  """Returns the sharding that a weight's split mapping asks for.

  Raises:
    UserError: the mapping names an axis that the mesh has not, or has another
      length than the weight has dimensions.
  """
  mapping = weight.tensor_split_dims_mapping
  if mapping is None:
    return replicated(mesh)
  if len(mapping) != len(weight.shape):
    raise errors.UserError(
      f'a weight of shape {list(weight.shape)} has the split mapping'
      f' {list(mapping)}; expected one entry for each dimension'
    )
  used = []
  spec = []
  for size, axis in zip(weight.shape, mapping, strict=True):
    axes = () if axis in (None, -1) else axis
    axes = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    for name in axes:
      _check_axis(mesh, name, used)
      used.append(name)
    parts = math.prod(mesh.shape[name] for name in axes)
    if size % parts:
      raise errors.UserError(
        f'a weight of shape {list(weight.shape)} has a dimension of {size} that'
        f' is split over {", ".join(axes)}; expected a multiple of {parts}'
      )
    spec.append(axes or None)
  return NamedSharding(mesh, PartitionSpec(*spec))


def _check_axis(mesh: Mesh, name: str, used: Sequence[str]):
  if name not in mesh.axis_names:
    raise errors.UserError(
      f'a weight is split over the mesh axis {name!r}, which is not there'
      + errors.did_you_mean(str(name), mesh.axis_names)
    )
  if name in used:
    raise errors.UserError(
      f'a weight is split over the mesh axis {name!r} twice; expected once at'
      ' most'
    )


def global_batch(batch: Any, sharding: NamedSharding) -> Any:
  """Returns this process's batch as part of the batch of all processes.

  Args:
    batch: numpy arrays whose first axis is the batch.
    sharding: `batch_sharding` of the mesh.

  Raises:
    UserError: the batch cannot be divided over the devices.
  """
  check_batch(batch, sharding)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)),
    batch,
  )


def check_batch(batch: Any, sharding: NamedSharding):
  """Raises a UserError where a batch cannot be divided over the devices."""
  mesh = sharding.mesh
  parts = math.prod(mesh.shape[a] for a in mesh.axis_names if a in BATCH_AXES)
  local_parts = max(1, parts // jax.process_count())
  for path, array in jax.tree_util.tree_flatten_with_path(batch)[0]:
    if array.shape[0] % local_parts:
      field = jax.tree_util.keystr(path, simple=True, separator='.')
      raise errors.UserError(
        f'the batch field {field!r} of shape {list(array.shape)} cannot be'
        f' divided over the {local_parts} device(s) of this process: expected a'
        f' batch size that is a multiple of {local_parts}'
      )
