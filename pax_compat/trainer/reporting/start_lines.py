"""What a run is about to do, in a few lines; sizes of a task's state."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import errors, learners
from pax_compat.layer_core import sharding as sharding_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning
from pax_compat.trainer.partitioning.automatic import AXIS, TENSOR_AXIS
from pax_compat.trainer.program import TaskProgram

_UNITS = ((1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of a task's state.

  Attributes:
    parameters: number of elements of the model's variables.
    weight_bytes: bytes of the variables on each device.
    optimizer_bytes: bytes of the learner's state on each device.
  """

  parameters: int
  weight_bytes: int
  optimizer_bytes: int

  @classmethod
  def of(cls, program: TaskProgram) -> 'Sizes':
    """Returns the sizes of a program's state."""
    state = program.abstract_state
    leaves = jax.tree.leaves(state.mdl_vars)
    return cls(
      parameters=sum(math.prod(x.shape) for x in leaves),
      weight_bytes=sum(map(bytes_per_device, leaves)),
      optimizer_bytes=sum(
        map(bytes_per_device, jax.tree.leaves(state.opt_state))
      ),
    )


def bytes_per_device(x: jax.ShapeDtypeStruct) -> int:
  """Returns the bytes of an array on each device, by its sharding."""
  shape = x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)
  size = getattr(x.dtype, 'itemsize', 4)
  return math.prod(shape) * size


def write(
  print_line: Callable[[str], None], program: TaskProgram, batch: NestedMap
):
  """Prints the devices and the mesh, the batch and dtypes, and the memory.

  Also what the devices cannot share evenly: rows of a batch, and weights.

  Args:
    print_line: prints a line for the user.
    program: of the task.
    batch: a batch of this process, or its shapes.
  """
  sizes = Sizes.of(program)
  for line in (
    f'{devices()}; mesh {mesh_text(program.mesh.shape)}',
    f'global batch {batch_text(batch, program)}; {dtypes(program)}',
    f'bytes per device: {bytes_text(sizes)}',
    *padding_lines(batch, program),
    *moved_lines(program),
    *auto_sharding_lines(program),
  ):
    print_line(line)


def padding_lines(batch: NestedMap, program: TaskProgram) -> list[str]:
  """Returns a line about the padding rows of each batch, if it has some."""
  sharding = program.batch_sharding
  added = partitioning.num_padding_rows(batch, sharding)
  if not added:
    return []
  hosts = sharding.num_infeed_hosts
  rows, _ = global_shape(batch, program)
  return [
    f'{rows:,} rows are not a multiple of the {sharding.num_shards} shards of a'
    f' batch: each has {hosts * added:,} padding row(s) of weight 0'
  ]


def moved_lines(program: TaskProgram) -> list[str]:
  """Returns lines about weights that are stored with another sharding."""
  by_text: dict[str, list[str]] = {}
  for path, split in program.moved_splits.items():
    for moved in split.moved:
      by_text.setdefault(str(moved), []).append(path)
  return [
    f'{errors.short_list(paths)}: {text}' for text, paths in by_text.items()
  ]


def auto_sharding_lines(program: TaskProgram) -> list[str]:
  """Returns a line about what auto sharding splits, if it is on."""
  if not program.task.train.auto_sharding:
    return []
  weights = jax.tree.leaves(program.abstract_state.mdl_vars)
  axes = ', '.join(program.batch_sharding.batch_axes)
  texts = [f'batches over {axes}', _split_over(program, weights, AXIS)]
  if program.task.train.tensor_parallel > 1:
    texts.append(_split_over(program, weights, TENSOR_AXIS))
  return [
    f'auto sharding: {"; ".join(texts)}; copies of the others on every device'
  ]


def _split_over(program: TaskProgram, weights: Sequence[Any], axis: str) -> str:
  """Returns how many weights, and parameters, are split over an axis."""
  several = program.mesh.shape[axis] > 1
  split = [
    x
    for x in weights
    if several and any(axis in sharding_lib.axes_of(e) for e in x.sharding.spec)
  ]
  share = sum(math.prod(x.shape) for x in split) / max(
    Sizes.of(program).parameters, 1
  )
  return (
    f'{len(split)} of {len(weights)} weights over {axis},'
    f' {100 * share:.4g} % of the parameters'
  )


def devices() -> str:
  """Returns the number and kind of the devices of all processes."""
  found = jax.devices()
  kind = found[0].device_kind
  processes = jax.process_count()
  where = f' of {processes} processes' if processes > 1 else ''
  return f'{len(found)} x {kind}{where}'


def mesh_text(shape: Mapping[str, int]) -> str:
  """Returns the axes of a mesh, such as `replica 1 x data 4`."""
  return ' x '.join(f'{axis} {size}' for axis, size in shape.items())


def batch_text(batch: NestedMap, program: TaskProgram) -> str:
  """Returns the shape of the global batch, such as `32 rows of 1,024`."""
  rows, length = global_shape(batch, program)
  return f'{rows:,} rows of {length:,}' if length else f'{rows:,} rows'


def global_shape(batch: NestedMap, program: TaskProgram) -> tuple[int, int]:
  """Returns rows and length of the global batch; the length may be 0.

  The length is that of the second dimension of the field `ids` or `paddings`,
  or else of the first field of two dimensions of whole numbers.
  """
  leaves = learners.by_path(batch)
  rows = next((x.shape[0] for x in leaves.values() if x.shape), 0)
  rows *= program.batch_sharding.num_infeed_hosts
  for wanted in ('ids', 'paddings'):
    for path, x in leaves.items():
      if path.rpartition('/')[2] == wanted and len(x.shape) >= 2:
        return rows, x.shape[1]
  for x in leaves.values():
    if len(x.shape) == 2 and np.issubdtype(x.dtype, np.integer):
      return rows, x.shape[1]
  return rows, 0


def dtypes(program: TaskProgram) -> str:
  """Returns the dtypes of the weights and of the computation."""
  leaves = jax.tree.leaves(program.abstract_state.mdl_vars)
  weights = sorted({str(x.dtype) for x in leaves})
  compute = getattr(program.model, 'fprop_dtype', None)
  name = np.dtype(compute).name if compute is not None else weights[-1]
  return f'weights in {", ".join(weights)}, computed in {name}'


def bytes_text(sizes: Sizes) -> str:
  """Returns the memory of a state on each device."""
  total = sizes.weight_bytes + sizes.optimizer_bytes
  return (
    f'weights {short_bytes(sizes.weight_bytes)}, optimizer'
    f' {short_bytes(sizes.optimizer_bytes)}, together {short_bytes(total)}'
  )


def short_bytes(count: float) -> str:
  """Returns a number of bytes with a decimal unit, such as `8.5 GB`."""
  for size, unit in _UNITS:
    if count >= size:
      return f'{count / size:.3g} {unit}'
  return f'{count:.0f} bytes'
