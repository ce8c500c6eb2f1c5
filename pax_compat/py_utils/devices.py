"""Arrays on devices, meshes and uneven shardings."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from pax_compat import errors
from pax_compat.py_utils.trees import is_optax_masked_node


def is_tpu() -> bool:
  """Whether this process's devices are TPUs."""
  return jax.local_devices()[0].platform == 'tpu'


def is_mock_tpu_backend() -> bool:
  """Returns False: mock TPUs exist only within Google."""
  return False


def sync_global_devices(name: str):
  """Waits until every process got to this call with the same `name`."""
  logging.info('waiting for all processes at %s', name)
  multihost_utils.sync_global_devices(name)


def maybe_unreplicate_for_fully_replicated(data: Any) -> Any:
  """Returns a tree of replicated arrays as arrays of one device.

  Those of `jax.pmap` [devices, ...] lose their first dimension, also of one
  device; those whose sharding replicates them keep their shape.
  """
  return jax.tree.map(_first_shard, data)


def maybe_unreplicate_for_first_shard(data: Any) -> Any:
  """Returns the first shard of each array in a tree."""
  return jax.tree.map(_first_shard, data)


def _first_shard(x: Any) -> Any:
  if not isinstance(x, jax.Array):
    return x
  if len(x.sharding.device_set) == 1:
    return x[0] if _is_of_pmap(x) else x
  shard = x.addressable_shards[0].data
  if x.is_fully_replicated or shard.ndim == 0 or shard.shape[0] != 1:
    return shard
  return shard[0]


def _is_of_pmap(x: jax.Array) -> bool:
  """Whether an array of one device is [1, ...], split over the only axis."""
  sharding = x.sharding
  return (
    isinstance(sharding, NamedSharding)
    and len(sharding.mesh.axis_names) == 1
    and tuple(sharding.spec)[:1] == tuple(sharding.mesh.axis_names)
    and x.shape[:1] == (1,)
  )


def put_to_devices(
  host_array: np.ndarray, local_devices: Sequence[Any]
) -> list[jax.Array]:
  """Returns the equal parts of [B, ...], one on each device.

  Raises:
    UserError: the number of devices does not divide B.
  """
  count = len(local_devices)
  if host_array.shape[0] % count:
    raise errors.UserError(
      f'an array of shape {host_array.shape} cannot be split over {count}'
      ' devices'
    )
  parts = np.split(np.asarray(host_array), count, axis=0)
  return [
    jax.device_put(part, device)
    for part, device in zip(parts, local_devices, strict=True)
  ]


def make_array(
  host_arrays: Any,
  global_shapes: Any,
  global_mesh: jax.sharding.Mesh,
  pspecs: Any = None,
  sharding: Any = None,
) -> Any:
  """Returns global arrays from the rows that each process holds.

  Args:
    host_arrays: a tree of local rows [B, ...].
    global_shapes: a tree of `jax.ShapeDtypeStruct`s.
    global_mesh: the mesh.
    pspecs: a tree of `PartitionSpec`s, or None.
    sharding: a tree of shardings, or None. Exactly one of both is given.

  Raises:
    UserError: both or none of `pspecs` and `sharding` are given.
  """
  if (pspecs is None) == (sharding is None):
    raise errors.UserError(
      'make_array: expected either pspecs or sharding, got'
      f' {"both" if sharding is not None else "neither"}'
    )
  if sharding is None:
    sharding = jax.tree.map(
      lambda spec: NamedSharding(global_mesh, spec),
      pspecs,
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
  return jax.tree.map(
    lambda rows, shape, split: jax.make_array_from_process_local_data(
      split, rows, shape.shape
    ),
    host_arrays,
    global_shapes,
    sharding,
  )


def get_global_input_shape_dtype(x: jax.Array) -> jax.ShapeDtypeStruct:
  """Returns the shape of local rows [B, ...] over all processes.

  Raises:
    UserError: `x` is a scalar.
  """
  if not x.shape:
    raise errors.UserError(
      'get_global_input_shape_dtype: expected rows, got []'
    )
  rows = x.shape[0] * jax.process_count()
  return jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)


def set_globally_use_rbg_prng_key():
  """Makes `rbg` the default implementation of random keys."""
  jax.config.update('jax_default_prng_impl', 'rbg')


def global_mesh_defined() -> bool:
  """Whether a mesh was set by `jax.set_mesh`."""
  return not jax.sharding.get_abstract_mesh().empty


def with_sharding_constraint(
  x: jax.Array, axis_resources: PartitionSpec | None
) -> jax.Array:
  """Returns `x` with a sharding constraint; `x` itself without a mesh."""
  if axis_resources is None or not global_mesh_defined():
    return x
  return jax.lax.with_sharding_constraint(x, axis_resources)


def get_uneven_sharding_paddings(
  partition_spec: PartitionSpec,
  shape: Sequence[int],
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
) -> list[int]:
  """Returns by how much each dimension is padded to be divided evenly."""
  sizes = dict(zip(mesh_axis_names, mesh_shape, strict=True))
  paddings = []
  for axes, size in zip(partition_spec, shape, strict=False):
    axes = (axes,) if isinstance(axes, str) else axes or ()
    paddings.append(-size % int(np.prod([sizes[axis] for axis in axes])))
  return paddings


def maybe_pad_uneven_sharding(
  xs: Any,
  partition_specs: Any,
  unpadded_shapes: Any,
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
) -> Any:
  """Returns a tree of arrays, padded with 0 so that the mesh divides them."""

  def pad(x, spec, shape):
    if is_optax_masked_node(x):
      return x
    more = get_uneven_sharding_paddings(
      spec, shape, mesh_shape, mesh_axis_names
    )
    if not any(more):
      return x
    more += [0] * (x.ndim - len(more))
    return jnp.pad(with_sharding_constraint(x, spec), [(0, n) for n in more])

  return jax.tree.map(
    pad, xs, partition_specs, unpadded_shapes, is_leaf=is_optax_masked_node
  )


def maybe_slice_uneven_sharding(
  xs: Any,
  partition_spec: Any,
  unpadded_shapes: Any,
  is_leaf: Any = None,
) -> Any:
  """Returns a tree of arrays, cut to their shapes without padding."""

  def cut(x, spec, shape):
    if is_optax_masked_node(x) or tuple(shape) == x.shape or x.shape == (0,):
      return x
    inner = x[tuple(slice(size) for size in shape)]
    return with_sharding_constraint(inner, spec)

  return jax.tree.map(cut, xs, partition_spec, unpadded_shapes, is_leaf=is_leaf)


def create_device_mesh(
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
  contiguous_submeshes: bool | None = False,
) -> np.ndarray:
  """Returns all devices as an array in the shape of a mesh.

  Args:
    ici_mesh_shape: devices along each axis, within a slice.
    dcn_mesh_shape: slices along each axis; None for a single slice. On CPUs,
      which have no slices, the devices are in their order.
    contiguous_submeshes: whether each process's devices are neighbours.

  Raises:
    UserError: the devices are not in that many slices.
  """
  if dcn_mesh_shape is None or max(dcn_mesh_shape, default=1) == 1:
    return mesh_utils.create_device_mesh(
      ici_mesh_shape, contiguous_submeshes=bool(contiguous_submeshes)
    )
  devices = jax.devices()
  if devices[0].platform == 'cpu':
    return np.reshape(devices, np.multiply(ici_mesh_shape, dcn_mesh_shape))
  try:
    return mesh_utils.create_hybrid_device_mesh(
      ici_mesh_shape, dcn_mesh_shape, devices=devices
    )
  except (AssertionError, ValueError) as e:
    raise errors.UserError(
      f'no mesh of ici_mesh_shape {list(ici_mesh_shape)} and dcn_mesh_shape'
      f' {list(dcn_mesh_shape)} with these {len(devices)} devices: {e}'
    ) from None
