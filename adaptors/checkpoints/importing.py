"""Imports a training state from a TensorFlow checkpoint, array by array."""

import functools
import re
from collections.abc import Callable, Iterable

import jax
import numpy as np
from absl import logging

from adaptors.checkpoints import mapping
from adaptors.checkpoints.counts import Counts
from adaptors.checkpoints.files import TensorflowCheckpoint
from pax_compat import checkpoints, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.program import TaskProgram, TrainState

_MAX_LISTED = 10
# Takes an array's path and a function that makes it; returns the array.
Keep = Callable[[str, Callable[[], np.ndarray]], np.ndarray]


def read_state(
  checkpoint: TensorflowCheckpoint,
  metadata: mapping.CheckpointMetadata,
  program: TaskProgram,
  batch: NestedMap,
  *,
  allow_missing: Iterable[str] = (),
  allow_unused: Iterable[str] = (),
  keep: Keep = lambda _, make: make(),
) -> TrainState:
  """Returns the state in a checkpoint, with the program's shardings.

  Peak memory is the state, plus one of its arrays and the tensors it is made
  of.

  Args:
    checkpoint: the checkpoint.
    metadata: of its task.
    program: the task's program.
    batch: a batch of this process, or its shapes.
    allow_missing: regular expressions of tensors that the checkpoint may lack;
      their arrays get their initial values.
    allow_unused: regular expressions of tensors that may be left over.
    keep: caches arrays before they are sharded; by default it does not.

  Raises:
    UserError: tensors are missing, left over or of another shape; the message
      lists them.
  """
  found = mapping.plan(program.abstract_state, metadata, checkpoint.shapes)
  _check(found, checkpoint, list(allow_missing), list(allow_unused))
  _check_shapes(found, checkpoint, program.abstract_state)
  counts = read_counts(checkpoint, found)
  wanted = checkpoints.state_paths(program.abstract_state)
  known = {*counts, *(leaf.path for leaf in found.leaves)}
  leaves = program.init_leaves(batch, [p for p in wanted if p not in known])
  for path, count in counts.items():
    # A repeated layer has a count per layer.
    values = np.broadcast_to(count, wanted[path].shape)
    leaves[path] = sharded(values, wanted[path])
  for leaf in found.leaves:
    values = keep(leaf.path, functools.partial(read_leaf, checkpoint, leaf))
    leaves[leaf.path] = sharded(values, wanted[leaf.path])
  structure = jax.tree.structure(program.abstract_state)
  return jax.tree.unflatten(structure, [leaves[path] for path in wanted])


def read_leaf(
  checkpoint: TensorflowCheckpoint, leaf: mapping.Leaf
) -> np.ndarray:
  """Returns an array of the state, made from a checkpoint's tensors."""
  tensors = [checkpoint.read(name) for name in leaf.tensors]
  return leaf.transform.to_jax(tensors)


def read_counts(
  checkpoint: TensorflowCheckpoint, found: mapping.Plan
) -> dict[str, int]:
  """Returns the counts of the state in a checkpoint, by path.

  Args:
    checkpoint: the checkpoint.
    found: its plan.

  Raises:
    UserError: the checkpoint's numbers contradict each other.
  """
  return found.counts.read(_reader(checkpoint, found.numbers))


def read_step(
  checkpoint: TensorflowCheckpoint, metadata: mapping.CheckpointMetadata
) -> int:
  """Returns a checkpoint's number of steps; 0 if it has none.

  Raises:
    UserError: the checkpoint's numbers contradict each other.
  """
  counts = Counts((), metadata)
  numbers = mapping.found_numbers(counts, checkpoint.shapes)
  return counts.batches(_reader(checkpoint, numbers)) or 0


def _reader(checkpoint, numbers):
  """Returns a function that reads a number, None for one that is missing."""

  def read(number):
    name = numbers.get(number)
    return None if name is None else checkpoint.read(name)

  return read


def sharded(values: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
  """Returns values as an array with the dtype and sharding of `like`."""
  values = values.astype(like.dtype, copy=False)
  return jax.make_array_from_callback(
    values.shape, like.sharding, lambda index: values[index]
  )


def _check(found, checkpoint, allow_missing, allow_unused):
  """Raises a UserError over tensors that are missing or left over."""
  lines = []
  for path, tensors in found.missing.items():
    wanted = _others(tensors, allow_missing)
    if wanted:
      near = errors.did_you_mean(wanted[0], found.unused)
      lines.append(f'missing: {", ".join(wanted)}, for {path}{near}')
    else:
      logging.warning(
        '%s is not in the checkpoint; it keeps its initial value', path
      )
  differing = [
    copy
    for copy, of in found.copies.items()
    if checkpoint.read(copy).tobytes() != checkpoint.read(of).tobytes()
  ]
  unused = _others([*found.unused, *differing], allow_unused)
  lines += [f'left over: {name}' for name in unused]
  for setting in (one for one in found.constants if one.is_setting):
    value = checkpoint.read(setting.name)
    if value != setting.array() and _others([setting.name], allow_unused):
      lines.append(
        f'another setting: {setting.name} is {value}, of the experiment'
        f' {setting.value}'
      )
  if not lines:
    return
  raise errors.UserError(
    f'{checkpoint.prefix} does not fit the experiment:\n  '
    + '\n  '.join(errors.listed(lines, _MAX_LISTED))
    + '\nexpected a checkpoint of this experiment; --allow_missing and'
    ' --allow_unused take regular expressions of what may differ'
  )


def _others(names: Iterable[str], patterns: list[str]) -> list[str]:
  """Returns the names that no pattern matches completely."""
  return [n for n in names if not any(re.fullmatch(p, n) for p in patterns)]


def _check_shapes(found, checkpoint, state):
  """Raises a UserError over tensors that give an array of another shape."""
  arrays = checkpoints.state_paths(state)
  lines = []
  for leaf in found.leaves:
    shapes = [checkpoint.shapes[name] for name in leaf.tensors]
    # Broadcast zeros take no memory.
    zeros = [np.broadcast_to(np.zeros([], np.int8), s) for s in shapes]
    wanted = arrays[leaf.path].shape
    try:
      made = leaf.transform.to_jax(zeros).shape
    except ValueError:
      made = None
    if made != wanted:
      tensors = ', '.join(
        f'{name} {list(s)}'
        for name, s in zip(leaf.tensors, shapes, strict=True)
      )
      lines.append(f'{tensors} for {leaf.path} {list(wanted)}')
  if lines:
    raise errors.UserError(
      f'{checkpoint.prefix} has tensors of other shapes than the experiment:\n'
      '  ' + '\n  '.join(lines[:_MAX_LISTED])
    )
