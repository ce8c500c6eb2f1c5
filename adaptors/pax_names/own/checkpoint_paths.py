"""Names of checkpoints of Pax: `paxml.checkpoint_paths`, `checkpoint_types`.

checkpoint_100         flax's msgpack
checkpoint_00000100    arrays of TensorStore
"""

import enum
import os
import re
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat.runs import files, job_dir, remote

__all__ = [
  'CHECKPOINT_PREFIX',
  'COMMIT_SUCCESS_FILE',
  'CheckpointType',
  'checkpoint_name',
  'get_step_from_checkpoint_asset',
  'is_checkpoint_asset',
  'is_tmp_checkpoint_asset',
  'latest_checkpoint',
  'latest_checkpoint_if_exists',
  'make_checkpoint_step_dir',
  'retrieve_checkpoint_type',
  'retrieve_latest_checkpoint_step',
  'retrieve_latest_checkpoint_step_if_exists',
]

CHECKPOINT_PREFIX = 'checkpoint_'
COMMIT_SUCCESS_FILE = 'commit_success.txt'
_NAME = re.compile(rf'(?:{CHECKPOINT_PREFIX})?(\d+)')
# Orbax's name of a half-written checkpoint, and that of older versions of Pax.
_TEMPORARY = re.compile(
  rf'.+\.orbax-checkpoint-tmp.*|tmp_\d+\.{CHECKPOINT_PREFIX}\d+'
)


@enum.unique
class CheckpointType(enum.StrEnum):
  """The layout of a checkpoint."""

  UNSPECIFIED = 'unspecified'
  FLAX = 'flax'
  GDA = 'gda'
  PERSISTENCE = 'persistence'


def retrieve_checkpoint_type(
  maybe_use_persistence_checkpointing: bool, task: Any
) -> CheckpointType:
  """Returns the type of a task's checkpoints: FLAX without a mesh."""
  if task.model.mesh_shape is None:
    return CheckpointType.FLAX
  if maybe_use_persistence_checkpointing:
    return CheckpointType.PERSISTENCE
  return CheckpointType.GDA


def checkpoint_name(
  step: int,
  checkpoint_type: CheckpointType = CheckpointType.UNSPECIFIED,
  use_digit_step_subdirectory: bool = False,
) -> str:
  """Returns the name of a step's checkpoint.

  >>> checkpoint_name(100), checkpoint_name(100, CheckpointType.FLAX)
  ('checkpoint_00000100', 'checkpoint_100')

  Args:
    step: the step.
    checkpoint_type: the layout.
    use_digit_step_subdirectory: whether the name is only the number.
  """
  if use_digit_step_subdirectory:
    return str(step)
  if checkpoint_type == CheckpointType.FLAX:
    return f'{CHECKPOINT_PREFIX}{step}'
  return f'{CHECKPOINT_PREFIX}{step:08d}'


def make_checkpoint_step_dir(
  checkpoint_dir: str | os.PathLike,
  step: int,
  checkpoint_type: CheckpointType = CheckpointType.UNSPECIFIED,
  use_digit_step_subdirectory: bool = False,
) -> Any:
  """Returns the path of a step's checkpoint; see `checkpoint_name`."""
  name = checkpoint_name(step, checkpoint_type, use_digit_step_subdirectory)
  return job_dir.checked_path(checkpoint_dir) / name


def is_checkpoint_asset(path: Any) -> bool:
  """Whether a path has the name of a checkpoint."""
  return _NAME.fullmatch(path.name) is not None


def is_tmp_checkpoint_asset(path: Any) -> bool:
  """Whether a path is that of a checkpoint that is not complete."""
  if _TEMPORARY.fullmatch(path.name):
    return True
  return is_checkpoint_asset(path) and not _is_complete(path)


def get_step_from_checkpoint_asset(checkpoint_dir: str | os.PathLike) -> int:
  """Returns the step in the name of a checkpoint.

  Raises:
    ValueError: it does not have the name of one.
  """
  name = os.path.basename(os.fspath(checkpoint_dir).rstrip('/'))
  found = _NAME.fullmatch(name)
  if found is None:
    raise ValueError(
      f'{checkpoint_dir} is not named as a checkpoint; expected'
      ' checkpoint_100 or checkpoint_00000100'
    )
  return int(found[1])


def by_step(checkpoint_dir: str | os.PathLike) -> dict[int, Any]:
  """Returns the paths of the complete checkpoints in a folder, by step."""
  folder = job_dir.answering_path(checkpoint_dir)
  found = {
    get_step_from_checkpoint_asset(child): child
    for child in files.children(folder)
    if is_checkpoint_asset(child) and _is_complete(child)
  }
  return dict(sorted(found.items()))


def _is_complete(checkpoint: Any) -> bool:
  """Whether all of it is there: local ones get their name at the end."""
  if not remote.is_remote(checkpoint):
    return True
  return (checkpoint / COMMIT_SUCCESS_FILE).exists() or checkpoint.is_file()


def latest_checkpoint_if_exists(checkpoint_dir: str | os.PathLike) -> Any:
  """Returns the path of the newest checkpoint; None without one."""
  return next(reversed(by_step(checkpoint_dir).values()), None)


def latest_checkpoint(checkpoint_dir: str | os.PathLike) -> Any:
  """Returns the path of the newest checkpoint.

  Raises:
    ValueError: the folder has none.
  """
  found = latest_checkpoint_if_exists(checkpoint_dir)
  if found is None:
    raise ValueError(f'{checkpoint_dir} has no checkpoint')
  return found


def retrieve_latest_checkpoint_step_if_exists(
  checkpoint_dir: str | os.PathLike,
) -> int | None:
  """Returns the newest step; None without a checkpoint.

  All processes get that of the first one.
  """
  step = next(reversed(by_step(checkpoint_dir)), -1)
  if jax.process_count() > 1:
    step = int(multihost_utils.broadcast_one_to_all(np.asarray(step)))
  return None if step < 0 else step


def retrieve_latest_checkpoint_step(checkpoint_dir: str | os.PathLike) -> int:
  """Returns the newest step.

  Raises:
    ValueError: the folder has no checkpoint.
  """
  step = retrieve_latest_checkpoint_step_if_exists(checkpoint_dir)
  if step is None:
    raise ValueError(f'{checkpoint_dir} has no checkpoint')
  return step
