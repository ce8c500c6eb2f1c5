"""The device mesh: which device has which place on which axis.

A machine is one slice, whose devices have fast links (`ici_mesh_shape`), or
several slices that a slower network connects (`dcn_mesh_shape`). An axis of the
mesh is as long as the product of its two numbers; its outer part goes over
slices, its inner part over the devices of a slice.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pax_compat import errors
from pax_compat.trainer.partitioning import automatic

# Axes of a logical mesh may share an axis of the torus on chips with only two.
_FLAT_TORUS = ('TPU v5 lite', 'TPU v5e')


def mesh_of_task(
  task: Any, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Returns the mesh that a task is trained on.

  Args:
    task: the `SingleTask`, or its config.
    devices: the devices; None for those of all processes.

  Raises:
    UserError: see `create_mesh`; or `tensor_parallel` without auto sharding.
  """
  train = task.train
  if not train.auto_sharding:
    if train.tensor_parallel > 1:
      raise errors.UserError(
        f'task.train.tensor_parallel is {train.tensor_parallel}; expected 1, or'
        ' --enable_auto_sharding, which it is a setting of'
      )
    return mesh_of(task.model, devices)
  devices = jax.devices() if devices is None else devices
  ici, dcn, names = automatic.shapes_of_mesh(
    task.model.mesh_axis_names,
    len(devices),
    _simulated_slices(task.model, devices) or _num_slices(devices),
    train.tensor_parallel,
  )
  return create_mesh(ici, names, dcn, devices)


def mesh_of(model: Any, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Returns the mesh of a model, by its fields or those of its config.

  Args:
    model: has `ici_mesh_shape`, `mesh_axis_names`, `dcn_mesh_shape` and
      `contiguous_submeshes`.
    devices: the devices; None for those of all processes.

  Raises:
    UserError: see `create_mesh`.
  """
  return create_mesh(
    model.ici_mesh_shape,
    model.mesh_axis_names,
    model.dcn_mesh_shape,
    devices,
    contiguous_submeshes=bool(model.contiguous_submeshes),
  )


def num_devices(model: Any) -> int:
  """Returns the number of devices of a model's mesh; 1 without a mesh."""
  ici = model.ici_mesh_shape
  if ici is None:
    return 1
  return math.prod(ici) * math.prod(model.dcn_mesh_shape or [1])


def mesh_of_one(mesh_axis_names: Sequence[str] | None) -> Mesh:
  """Returns a mesh of a single device, for programs that are only looked at.

  Args:
    mesh_axis_names: the axes' names; None for `data`.
  """
  names = mesh_axis_names or ('data',)
  return create_mesh([1] * len(names), names, devices=jax.devices()[:1])


def create_mesh(
  ici_mesh_shape: Sequence[int] | None,
  mesh_axis_names: Sequence[str] | None,
  dcn_mesh_shape: Sequence[int] | None = None,
  devices: Sequence[jax.Device] | None = None,
  *,
  contiguous_submeshes: bool = False,
) -> Mesh:
  """Returns the mesh of all devices.

  Args:
    ici_mesh_shape: devices along each axis within a slice, whose devices have
      fast links; None puts all devices, of all slices, on one axis, `data`.
    mesh_axis_names: the axes' names.
    dcn_mesh_shape: slices along each axis; None for a single slice. An axis of
      the mesh is as long as the product of its two numbers.
    devices: the devices; None for those of all processes.
    contiguous_submeshes: whether the devices of each process are neighbours on
      the mesh. It matters on TPUs only: other devices are always in the order
      of their processes.

  Raises:
    UserError: the shape does not fit the number of devices or slices, the names
      are missing, or the links of the devices do not form the mesh.
  """
  devices = jax.devices() if devices is None else devices
  if ici_mesh_shape is None:
    for field, value in (
      ('mesh_axis_names', mesh_axis_names),
      ('dcn_mesh_shape', dcn_mesh_shape),
    ):
      if value is not None:
        raise errors.UserError(
          f'{field} {list(value)} needs an ici_mesh_shape of'
          f' {len(value)} numbers'
        )
    slices = _num_slices(devices)
    ici_mesh_shape, mesh_axis_names = (len(devices) // slices,), ('data',)
    dcn_mesh_shape = (slices,)
  ici, dcn, names = _checked_shapes(
    ici_mesh_shape, dcn_mesh_shape, mesh_axis_names, len(devices)
  )
  blocks = np.stack(
    [
      _within_slice(of_slice, ici, contiguous=contiguous_submeshes)
      for of_slice in _slices(devices, dcn)
    ]
  ).reshape(*dcn, *ici)
  # Each axis: its slices, then its devices within a slice.
  rank = len(ici)
  order = [axis for i in range(rank) for axis in (i, rank + i)]
  shape = [i * d for i, d in zip(ici, dcn, strict=True)]
  # Auto on purpose: under explicit axes, scanned and rematerialised flax
  # modules with sharding annotations do not trace.
  return Mesh(
    blocks.transpose(order).reshape(shape),
    names,
    axis_types=(AxisType.Auto,) * rank,
  )


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays of which every device has a copy."""
  return NamedSharding(mesh, PartitionSpec())


def _checked_shapes(ici, dcn, names, count: int):
  ici = tuple(ici)
  dcn = (1,) * len(ici) if dcn is None else tuple(dcn)
  if names is None or len(names) != len(ici):
    raise errors.UserError(
      f'ici_mesh_shape {list(ici)} needs {len(ici)} mesh_axis_names, got'
      f' {names}'
    )
  if len(dcn) != len(ici):
    raise errors.UserError(
      f'dcn_mesh_shape {list(dcn)} has {len(dcn)} numbers; expected {len(ici)},'
      f' as ici_mesh_shape {list(ici)} has'
    )
  if math.prod(ici) * math.prod(dcn) != count:
    slices = f' in {math.prod(dcn)} slices' if math.prod(dcn) > 1 else ''
    fits = str([count, *[1] * (len(ici) - 1)]).replace(' ', '')
    raise errors.UserError(
      f'ici_mesh_shape {list(ici)} is for {math.prod(ici)} devices{slices};'
      f' there are {count}'
      + (
        f', and dcn_mesh_shape is {list(dcn)}'
        if slices
        else f'; --set=task.model.ici_mesh_shape={fits} fits them'
      )
    )
  return ici, dcn, tuple(names)


def _num_slices(devices: Sequence[Any]) -> int:
  """Returns the number of slices of TPUs; 1 for other devices."""
  if devices[0].platform != 'tpu':
    return 1
  return len({getattr(d, 'slice_index', 0) for d in devices})


def _simulated_slices(model: Any, devices: Sequence[Any]) -> int | None:
  """Returns the number of slices that CPU devices stand for, if they can."""
  slices = math.prod(model.dcn_mesh_shape or [1])
  if devices[0].platform != 'cpu' or len(devices) % slices:
    return None
  return slices


def _slices(devices: Sequence[Any], dcn: Sequence[int]) -> list[list[Any]]:
  """Returns the devices of each of the slices that `dcn` is for, in order.

  The slices of TPUs are physical. Other devices are grouped by the network
  between them: by `slice_index` (on GPUs, the machines) if they have several,
  else by process; several of these may form a slice. CPU devices, which all
  simulations have, are grouped in their order where processes do not fit.

  Raises:
    UserError: the devices do not have so many slices.
  """
  wanted = math.prod(dcn)
  by_index = _grouped(devices, lambda d: getattr(d, 'slice_index', None) or 0)
  platform = devices[0].platform
  if platform == 'tpu':
    groups = by_index
    if len(groups) == wanted:
      return groups
  elif wanted == 1:
    return [list(devices)]
  else:
    groups = by_index
    if len(groups) == 1:
      groups = _grouped(devices, lambda d: d.process_index)
    if len(groups) % wanted and platform == 'cpu':
      groups = [[device] for device in devices]
    if len(groups) % wanted == 0:
      return _merged(groups, len(groups) // wanted)
  raise errors.UserError(
    f'dcn_mesh_shape {list(dcn)} is for {wanted} slice(s); the devices are in'
    f' {len(groups)}'
  )


def _grouped(devices, key) -> list[list[Any]]:
  groups: dict[int, list[Any]] = {}
  for device in devices:
    groups.setdefault(key(device), []).append(device)
  return [groups[k] for k in sorted(groups)]


def _merged(groups: list[list[Any]], size: int) -> list[list[Any]]:
  """Returns each `size` consecutive groups as one."""
  return [
    [device for group in groups[i : i + size] for device in group]
    for i in range(0, len(groups), size)
  ]


def _within_slice(
  devices: list[Any], ici: Sequence[int], *, contiguous: bool
) -> np.ndarray:
  """Returns the devices of a slice, arranged by their links.

  Raises:
    UserError: slices have different numbers of devices, or their links have no
      such mesh.
  """
  if len(devices) != math.prod(ici):
    raise errors.UserError(
      f'ici_mesh_shape {list(ici)} is for {math.prod(ici)} devices of a slice;'
      f' a slice has {len(devices)}'
    )

  def arranged(split: bool) -> np.ndarray:
    return mesh_utils.create_device_mesh(
      ici,
      devices,
      contiguous_submeshes=contiguous,
      allow_split_physical_axes=split,
    )

  kind = devices[0].device_kind
  try:
    return arranged(split=kind in _FLAT_TORUS)
  except (NotImplementedError, ValueError) as e:
    if contiguous:
      raise errors.UserError(
        f'contiguous_submeshes: the {len(devices)} devices ({kind}) of a slice'
        f' cannot be arranged as ici_mesh_shape {list(ici)} so that those of'
        ' each process are neighbours; expected another shape, or'
        ' contiguous_submeshes=False'
      ) from e
    logging.warning(
      'ici_mesh_shape %s is not made of whole axes of the torus of %d %s'
      ' devices: axes of the mesh share links, which makes collectives slower',
      list(ici),
      len(devices),
      kind,
    )
  try:
    return arranged(split=True)
  except (NotImplementedError, ValueError) as e:
    raise errors.UserError(
      f'the {len(devices)} devices ({kind}) of a slice cannot be arranged as'
      f' ici_mesh_shape {list(ici)}: {e}'
    ) from e
