"""Sharding of arrays over the current mesh."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pax_compat import errors

# Mesh axes that a batch is split over, if the mesh has them.
BATCH_AXES = ('replica', 'data')

# For each dimension a mesh axis, a sequence of mesh axes, or None.
SplitDimsMapping = Sequence[str | Sequence[str] | None] | None


def partition_spec(
  mapping: SplitDimsMapping,
  shape: Sequence[int],
  axis_names: Sequence[str],
  *,
  where: str,
) -> PartitionSpec:
  """Returns a split mapping as JAX's PartitionSpec.

  Args:
    mapping: None replicates. An entry of -1 is an older spelling of None.
    shape: shape of the array.
    axis_names: axes of the mesh.
    where: prefix of error messages.

  Raises:
    UserError: the mapping's length is not the rank of the array, or it names an
      unknown mesh axis or one axis twice.
  """
  if mapping is None:
    return PartitionSpec()
  if len(mapping) != len(shape):
    raise errors.UserError(
      f'{where}: an array of shape {list(shape)} has the split mapping'
      f' {list(mapping)}; expected one entry for each dimension'
    )
  entries = [axes_of(entry) for entry in mapping]
  used: list[Any] = []
  for name in (name for axes in entries for name in axes):
    if name not in axis_names:
      raise errors.UserError(
        f'{where}: split over {name!r}, which is not an axis of the mesh'
        + errors.did_you_mean(str(name), axis_names)
      )
    if name in used:
      raise errors.UserError(
        f'{where}: split over the mesh axis {name!r} twice; expected at most'
        ' once'
      )
    used.append(name)
  return PartitionSpec(*(axes or None for axes in entries))


def platform() -> str:
  """Returns the platform that is traced for: `cpu`, `gpu` or `tpu`.

  It is that of the current mesh, whose devices may be simulated, or else that
  of this process's devices.
  """
  mesh = jax.sharding.get_abstract_mesh()
  device = None if mesh.empty else mesh.abstract_device
  return jax.default_backend() if device is None else device.platform


def is_one_cpu() -> bool:
  """Whether what is traced runs on a single device, and that is a CPU."""
  mesh = jax.sharding.get_abstract_mesh()
  return platform() == 'cpu' and (mesh.empty or mesh.size == 1)


def axes_of(entry: Any) -> tuple[str, ...]:
  """Returns the mesh axes of one entry of a mapping."""
  if entry is None or entry == -1:
    return ()
  return tuple(entry) if isinstance(entry, list | tuple) else (entry,)


def shard(x: jax.Array, mapping: SplitDimsMapping, *, where: str) -> jax.Array:
  """Returns `x` with a sharding constraint on the mesh of `jax.set_mesh`.

  Without a mesh, or if the mapping is None, `x` is left to the compiler.

  Raises:
    UserError: see `partition_spec`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mapping is None or mesh.empty:
    return x
  spec = partition_spec(mapping, x.shape, mesh.axis_names, where=where)
  return jax.lax.with_sharding_constraint(x, spec)


def to_partition_spec(
  split_dims_mapping: Sequence[Any], mesh_axis_names: Sequence[str]
) -> PartitionSpec:
  """Returns a split mapping as JAX's PartitionSpec.

  Args:
    split_dims_mapping: for each dimension a mesh axis by name or index, a
      sequence of them, or None or -1 for no split.
    mesh_axis_names: axes of the mesh.

  Raises:
    UserError: an axis is unknown.
  """

  def named(entry):
    if isinstance(entry, list | tuple):
      return tuple(named(axis) for axis in entry)
    if isinstance(entry, int) and 0 <= entry < len(mesh_axis_names):
      return mesh_axis_names[entry]
    if entry is None or isinstance(entry, int) and entry < 0:
      return None
    if entry not in mesh_axis_names:
      raise errors.UserError(
        f'{entry!r} is not an axis of the mesh {tuple(mesh_axis_names)}'
        + errors.did_you_mean(str(entry), mesh_axis_names)
      )
    return entry

  return PartitionSpec(*map(named, split_dims_mapping))


def var_partition_specs(
  var_specs: Any, mesh_shape: Sequence[int], device_axis_names: Sequence[str]
) -> Any:
  """Returns the PartitionSpecs of a tree of `WeightHParams`.

  Raises:
    UserError: the mesh has another number of axes than names.
  """
  if len(mesh_shape) != len(device_axis_names):
    raise errors.UserError(
      f'the mesh shape {list(mesh_shape)} has other axes than'
      f' {list(device_axis_names)}'
    )
  return jax.tree.map(
    lambda w: to_partition_spec(w.full_split_dims_mapping, device_axis_names),
    var_specs,
  )


def transpose_one_axis(
  axis: str | None, mesh_axes_transpose: dict[str, str] | None
) -> str | None:
  """Returns the mesh axis that stands for another one."""
  return (mesh_axes_transpose or {}).get(axis, axis)


def array_of_hosts(
  x: np.ndarray, split: NamedSharding, hosts: int
) -> jax.Array:
  """Returns a global array from each host's local rows, [B * hosts, ...].

  Args:
    x: the local rows [B, ...], or a scalar that is equal on all hosts.
    split: sharding of the global array.
    hosts: number of hosts with rows of their own.
  """
  shape = x.shape and (x.shape[0] * hosts, *x.shape[1:])
  return jax.make_array_from_process_local_data(split, x, shape)
