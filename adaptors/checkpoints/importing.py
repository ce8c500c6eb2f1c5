"""Makes a run's state of a TensorFlow checkpoint, one tensor at a time."""

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
# Takes the path of an array and what makes it, and returns it.
Keep = Callable[[str, Callable[[], np.ndarray]], np.ndarray]


def read_state(
  checkpoint: TensorflowCheckpoint,
  facts: mapping.Facts,
  program: TaskProgram,
  batch: NestedMap,
  *,
  allow_missing: Iterable[str] = (),
  allow_unused: Iterable[str] = (),
  keep: Keep = lambda _, make: make(),
) -> TrainState:
  """Returns the state that a checkpoint holds, each array where it belongs.

  In memory is never more than the state, one of its arrays and the tensors that
  it is made of.

  Args:
    checkpoint: the checkpoint.
    facts: of its task.
    program: the task's steps.
    batch: a batch of this process, or its shapes.
    allow_missing: regular expressions of tensors that the checkpoint may lack;
      what they would have been starts anew.
    allow_unused: regular expressions of tensors that may be left over.
    keep: where arrays are kept in between; by default nowhere.

  Raises:
    UserError: tensors are missing or left over, or have other shapes; the
      message has all of them.
  """
  found = mapping.plan(program.abstract_state, facts, checkpoint.shapes)
  _check(found, checkpoint, list(allow_missing), list(allow_unused))
  _check_shapes(found, checkpoint, program.abstract_state)
  counts = read_counts(checkpoint, found)
  wanted = checkpoints.state_paths(program.abstract_state)
  known = {*counts, *(leaf.path for leaf in found.leaves)}
  leaves = program.init_leaves(batch, [p for p in wanted if p not in known])
  for path, count in counts.items():
    # A repeated layer has one for each of its layers.
    values = np.broadcast_to(count, wanted[path].shape)
    leaves[path] = _placed(values, wanted[path])
  for leaf in found.leaves:
    values = keep(leaf.path, functools.partial(read_leaf, checkpoint, leaf))
    leaves[leaf.path] = _placed(values, wanted[leaf.path])
  structure = jax.tree.structure(program.abstract_state)
  return jax.tree.unflatten(structure, [leaves[path] for path in wanted])


def read_leaf(
  checkpoint: TensorflowCheckpoint, leaf: mapping.Leaf
) -> np.ndarray:
  """Returns an array of the state, made of a checkpoint's tensors."""
  parts = [checkpoint.read(name) for name in leaf.tensors]
  return leaf.transform.to_jax(parts)


def read_counts(
  checkpoint: TensorflowCheckpoint, found: mapping.Plan
) -> dict[str, int]:
  """Returns the counts of the state that a checkpoint holds, by path.

  Args:
    checkpoint: the checkpoint.
    found: the plan of it.

  Raises:
    UserError: the checkpoint's numbers contradict each other.
  """
  return found.counts.read(_reader(checkpoint, found.numbers))


def read_step(checkpoint: TensorflowCheckpoint, facts: mapping.Facts) -> int:
  """Returns how many steps a checkpoint's run made; 0 where it does not say.

  Raises:
    UserError: the checkpoint's numbers contradict each other.
  """
  counts = Counts((), facts)
  numbers = mapping.found_numbers(counts, checkpoint.shapes)
  return counts.batches(_reader(checkpoint, numbers)) or 0


def _reader(checkpoint, numbers):
  """Returns the function that reads a number, or returns None."""

  def read(number):
    name = numbers.get(number)
    return None if name is None else checkpoint.read(name)

  return read


def _placed(values: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
  """Returns values as an array of the dtype and sharding of another."""
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
      logging.warning('%s is not in the checkpoint and starts anew', path)
  differing = [
    copy
    for copy, of in found.copies.items()
    if checkpoint.read(copy).tobytes() != checkpoint.read(of).tobytes()
  ]
  unused = _others([*found.unused, *differing], allow_unused)
  lines += [f'left over: {name}' for name in unused]
  if not lines:
    return
  more = len(lines) - _MAX_LISTED
  listed = [*lines[:_MAX_LISTED], *([f'and {more} more'] if more > 0 else [])]
  raise errors.UserError(
    f'{checkpoint.prefix} does not fit the experiment:\n  '
    + '\n  '.join(listed)
    + '\nexpected a checkpoint of this experiment; --allow_missing and'
    ' --allow_unused take regular expressions of what may differ'
  )


def _others(names: Iterable[str], patterns: list[str]) -> list[str]:
  """Returns the names that no pattern matches as a whole."""
  return [n for n in names if not any(re.fullmatch(p, n) for p in patterns)]


def _check_shapes(found, checkpoint, state):
  """Raises a UserError over tensors that make an array of another shape."""
  arrays = checkpoints.state_paths(state)
  lines = []
  for leaf in found.leaves:
    shapes = [checkpoint.shapes[name] for name in leaf.tensors]
    # Of broadcast zeros, which take no memory.
    parts = [np.broadcast_to(np.zeros([], np.int8), s) for s in shapes]
    wanted = arrays[leaf.path].shape
    try:
      made = leaf.transform.to_jax(parts).shape
    except ValueError:
      made = None
    if made != wanted:
      told = ', '.join(
        f'{name} {list(s)}'
        for name, s in zip(leaf.tensors, shapes, strict=True)
      )
      lines.append(f'{told} for {leaf.path} {list(wanted)}')
  if lines:
    raise errors.UserError(
      f'{checkpoint.prefix} has tensors of other shapes than the experiment:\n'
      '  ' + '\n  '.join(lines[:_MAX_LISTED])
    )
