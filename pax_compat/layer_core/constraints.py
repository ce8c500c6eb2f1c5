"""Sharding constraints that depend on the current `JaxContext`."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pax_compat import errors
from pax_compat.layer_core.jax_context import JaxContext
from pax_compat.layer_core.sharding import (
  SplitDimsMapping,
  to_partition_spec,
  transpose_one_axis,
)

# The axis of Pax's pmap.
PMAP_PARALLEL_AXIS_NAME = 'batch'


def is_running_under_pmap() -> bool:
  """Whether a mapped axis `batch`, as of Pax's pmap, is being traced."""
  try:
    jax.lax.axis_size(PMAP_PARALLEL_AXIS_NAME)
  except NameError:
    return False
  return True


def maybe_transpose_mesh_axes(partition_spec: PartitionSpec) -> PartitionSpec:
  """Returns a spec with the axes of the context's `mesh_axes_transpose`."""
  context = JaxContext.top()
  axes = context.hparams.mesh_axes_transpose if context else None

  def other(entry: Any) -> Any:
    if entry is PartitionSpec.UNCONSTRAINED:
      return entry
    if isinstance(entry, tuple):
      return tuple(filter(None, map(other, entry)))
    return transpose_one_axis(entry, axes)

  return PartitionSpec(*map(other, partition_spec)) if axes else partition_spec


def maybe_shard(
  x: jax.Array,
  split_dims_mapping: SplitDimsMapping = None,
  mesh_axis_names: Sequence[str] | None = None,
  unconstrained_dims: Sequence[int] | None = None,
) -> jax.Array:
  """Returns `x` with a sharding constraint on the current mesh.

  Args:
    x: an array.
    split_dims_mapping: see `to_partition_spec`; None returns `x`.
    mesh_axis_names: axes of the mesh; None returns `x`.
    unconstrained_dims: dimensions that are left to the compiler.

  Raises:
    UserError: the mapping's length is not the rank of `x`, or an axis is
      unknown.
  """
  if split_dims_mapping is None or mesh_axis_names is None:
    return x
  if len(split_dims_mapping) != x.ndim:
    raise errors.UserError(
      f'maybe_shard: an array of shape {list(x.shape)} has the split mapping'
      f' {list(split_dims_mapping)}; expected one entry for each dimension'
    )
  spec = to_partition_spec(split_dims_mapping, mesh_axis_names)
  entries = list(maybe_transpose_mesh_axes(spec))
  for dim in unconstrained_dims or ():
    entries[dim] = PartitionSpec.UNCONSTRAINED
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*entries))
