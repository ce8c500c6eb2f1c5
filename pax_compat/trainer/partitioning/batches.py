"""The sharding of batches over a mesh."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from pax_compat import errors
from pax_compat.input_core import example_rows
from pax_compat.layer_core import sharding as sharding_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.partitioning import weights
from pax_compat.trainer.partitioning.meshes import replicated

BATCH_AXES = sharding_lib.BATCH_AXES


class BatchSharding:
  """How global batches are split over the mesh.

  Attributes:
    mesh: the mesh.
    batch_axes: the mesh axes that the first dimension is split over.
    num_shards: number of shards of the first dimension.
    num_infeed_hosts: number of processes that read different rows of a batch.
    infeed_host_index: which of them this one is. Processes whose devices have
      the same rows have the same index.
  """

  def __init__(self, mesh: Mesh, split_mapping: Mapping[str, Any] | None):
    """See `batch_sharding`."""
    self.mesh = mesh
    self._mappings = dict(split_mapping or {})
    axes = [a for a in mesh.axis_names if a in BATCH_AXES]
    firsts = {_first_axes(name, m) for name, m in self._mappings.items()}
    if len(firsts) > 1:
      raise errors.UserError(
        f'inputs_split_mapping splits the first dimension in {len(firsts)}'
        ' ways; expected one, since it is the batch in all fields'
      )
    self.batch_axes = firsts.pop() if firsts else tuple(axes)
    self.of(1)  # Raises if the mesh does not have the axes.
    self.num_shards = math.prod(mesh.shape[a] for a in self.batch_axes)
    self._shards_of_hosts, self.infeed_host_index = self._infeed_hosts()
    self.num_infeed_hosts = len(self._shards_of_hosts)

  def of(self, ndim: int) -> NamedSharding:
    """Returns the sharding of fields with `ndim` dimensions."""
    if ndim == 0:
      return replicated(self.mesh)
    rest = [None] * (ndim - 1)
    mapping = self._mappings.get(f'map_{ndim}d', [self.batch_axes, *rest])
    spec = sharding_lib.partition_spec(
      mapping,
      [0] * ndim,
      self.mesh.axis_names,
      where=f'inputs_split_mapping.map_{ndim}d',
    )
    return NamedSharding(self.mesh, spec)

  def of_shape(self, shape: Sequence[int]) -> NamedSharding:
    """Returns the sharding of a field; see `of`.

    Of dimensions after the first, axes that do not divide them are left out.
    """
    split = self.of(len(shape))
    if not shape:
      return split
    whole = (self.num_shards, *shape[1:])  # The rows always divide.
    return NamedSharding(
      self.mesh, weights.even_spec(split.spec, whole, self.mesh)
    )

  def rows_of_hosts(self, rows: int) -> list[np.ndarray]:
    """Returns the rows of a global batch that each infeed host reads.

    Args:
      rows: number of rows of the global batch.

    Returns:
      For each `infeed_host_index` its rows, in the order of its batch.
    """
    by_shard = np.arange(rows).reshape(self.num_shards, -1)
    return [by_shard[list(shards)].ravel() for shards in self._shards_of_hosts]

  def _infeed_hosts(self) -> tuple[list[tuple[int, ...]], int]:
    """Returns the shards of each infeed host, and this process's index."""
    indices = self.of(1).devices_indices_map((self.num_shards,))
    shards_of: dict[int, set[int]] = {}
    for device, (index,) in indices.items():
      shards = range(*index.indices(self.num_shards))
      shards_of.setdefault(device.process_index, set()).update(shards)
    groups = sorted({tuple(sorted(shards)) for shards in shards_of.values()})
    sizes = {len(group) for group in groups}
    if sum(map(len, groups)) != self.num_shards or len(sizes) > 1:
      raise errors.UserError(
        f'the mesh {dict(self.mesh.shape)} splits a batch over'
        f' {", ".join(self.batch_axes)} so that processes have some of each'
        " other's examples; expected the same examples or all different ones"
      )
    mine = tuple(sorted(shards_of.get(jax.process_index(), groups[0])))
    return groups, groups.index(mine)


def _first_axes(name: str, mapping: Any) -> tuple[str, ...]:
  rank = name.removeprefix('map_').removesuffix('d')
  if not name.startswith('map_') or not rank.isdigit() or int(rank) < 1:
    raise errors.UserError(
      f'inputs_split_mapping has the key {name!r}; expected map_1d, map_2d and'
      ' so on'
    )
  if not isinstance(mapping, tuple | list) or len(mapping) != int(rank):
    raise errors.UserError(
      f'inputs_split_mapping.{name} is {mapping!r}; expected a mesh axis, or'
      f' several, or None for each of {rank} dimension(s)'
    )
  return sharding_lib.axes_of(mapping[0])


def batch_sharding(
  mesh: Mesh, inputs_split_mapping: Mapping[str, Any] | None = None
) -> BatchSharding:
  """Returns the sharding of batches.

  Args:
    mesh: the mesh.
    inputs_split_mapping: see `task_settings.Train`.

  Raises:
    UserError: the mapping is inconsistent, or does not fit the mesh.
  """
  return BatchSharding(mesh, inputs_split_mapping)


def global_batch(batch: Any, sharding: BatchSharding) -> Any:
  """Returns the global batch, of which this process has a part.

  Args:
    batch: numpy arrays of this process, [rows, ...]. Padding rows are added if
      the devices do not divide the rows; see `padded`.
    sharding: how batches are split.
  """

  def put(x):
    x = np.asarray(x)
    return sharding_lib.array_of_hosts(
      x, sharding.of_shape(x.shape), sharding.num_infeed_hosts
    )

  return jax.tree.map(put, padded(batch, sharding))


def padded(batch: Any, sharding: BatchSharding) -> Any:
  """Returns a batch of this process whose rows its devices divide.

  Padding rows have weight 0 and paddings 1, also in the field
  `eval_sample_weights`, which is added. A batch that needs none is returned as
  it is.

  Args:
    batch: arrays of this process, or their shapes, [rows, ...]; or nested maps
      of them, by the name of a task.
    sharding: how batches are split.
  """
  added = num_padding_rows(batch, sharding)
  if not added:
    return batch
  inner = isinstance(batch, NestedMap) and list(batch.values())
  if inner and all(isinstance(x, NestedMap) for x in inner):
    return NestedMap({k: padded(x, sharding) for k, x in batch.items()})
  leaves = jax.tree.leaves(batch)
  rows = example_rows.num_rows(batch)
  if not isinstance(leaves[0], jax.ShapeDtypeStruct):
    batch = example_rows.with_example_weights(batch, rows)
    return example_rows.pad_batch(batch, real=rows, rows=rows + added)
  weights = example_rows.with_example_weights(NestedMap(), rows)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape and (rows + added, *x.shape[1:]), x.dtype
    ),
    NestedMap({**weights, **batch}),
  )


def num_padding_rows(batch: Any, sharding: BatchSharding) -> int:
  """Returns the number of padding rows in a batch of this process.

  Args:
    batch: arrays of this process, or their shapes, [rows, ...].
    sharding: how batches are split.

  Raises:
    UserError: fields differ in their number of rows, which have to be padded.
  """
  local_shards = sharding.num_shards // sharding.num_infeed_hosts
  rows = {x.shape[0] for x in jax.tree.leaves(batch) if x.shape}
  if all(n % local_shards == 0 for n in rows):
    return 0
  if len(rows) > 1:
    raise errors.UserError(
      f'the fields of a batch have {", ".join(map(str, sorted(rows)))} rows,'
      f' which cannot be divided over the {local_shards} device(s) of this'
      f' process; expected the same number, or multiples of {local_shards}'
    )
  return -rows.pop() % local_shards


def local_rows(array: jax.Array) -> np.ndarray:
  """Returns the rows of an array on this process's devices, each of them once.

  Args:
    array: [B, ...], split as batches are. Rows that several processes have are
      returned by the one with their first replica.
  """
  shards = _first_replicas(array)
  if not shards:
    return np.zeros((0, *array.shape[1:]), array.dtype)
  return np.concatenate([shard.data for shard in shards])


def local_row_numbers(array: jax.Array) -> np.ndarray:
  """Returns the indices, below B, of the rows that `local_rows` returns."""
  numbers = np.arange(array.shape[0])
  shards = _first_replicas(array)
  return np.concatenate([numbers[:0], *(numbers[s.index[0]] for s in shards)])


def _first_replicas(array: jax.Array) -> list[Any]:
  shards = [s for s in array.addressable_shards if s.replica_id == 0]
  return sorted(shards, key=lambda shard: shard.index[0].start or 0)
