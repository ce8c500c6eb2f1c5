"""Checkpoints of loops of one's own, in Pax's format: `paxml.checkpoints`.

`save_checkpoint` writes flax's msgpack, `restore_checkpoint` reads all formats
of Pax: flax's, and arrays of TensorStore with or without OCDBT.

Arrays are restored by their names. Those of the model's variables are Pax's;
the learner's state has other arrays here than in Pax, so that a state with it
is restored only from checkpoints that were written here.
"""

import json
import os
import uuid
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import serialization
from jax.sharding import NamedSharding

from adaptors.pax_names.own import checkpoint_paths
from adaptors.pax_names.own.checkpoint_paths import (
  CHECKPOINT_PREFIX,
  COMMIT_SUCCESS_FILE,
  CheckpointType,
  get_step_from_checkpoint_asset,
  is_checkpoint_asset,
  is_tmp_checkpoint_asset,
  latest_checkpoint,
  latest_checkpoint_if_exists,
  make_checkpoint_step_dir,
  retrieve_checkpoint_type,
  retrieve_latest_checkpoint_step,
  retrieve_latest_checkpoint_step_if_exists,
)
from pax_compat import base_layer, errors, py_utils
from pax_compat.runs import files, job_dir, remote
from pax_compat.tasks.train_states import TrainState
from pax_compat.warm_start import pax_source, pax_trees, sources

__all__ = [
  'CHECKPOINT_PREFIX',
  'CheckpointType',
  'SavedCheckpoints',
  'get_step_from_checkpoint_asset',
  'is_checkpoint_asset',
  'is_tmp_checkpoint_asset',
  'latest_checkpoint',
  'latest_checkpoint_if_exists',
  'make_checkpoint_step_dir',
  'restore_checkpoint',
  'retrieve_checkpoint_type',
  'retrieve_latest_checkpoint_step',
  'retrieve_latest_checkpoint_step_if_exists',
  'save_checkpoint',
]

_VERSION = 1.1
_VARIABLES, _OPT_STATES = 'mdl_vars/', 'opt_states/'
_OF_PARAMS = f'{_VARIABLES}{base_layer.PARAMS}/'
_MAX_LISTED = 4


class SavedCheckpoints:
  """The checkpoints of a folder, as `save_checkpoint` returns them.

  Attributes:
    directory: the folder.
  """

  def __init__(self, directory: Any):
    self.directory = directory

  def all_steps(self) -> list[int]:
    """Returns the steps of the checkpoints, the newest last."""
    return list(checkpoint_paths.by_step(self.directory))

  def latest_step(self) -> int | None:
    """Returns the newest step; None without a checkpoint."""
    return next(reversed(self.all_steps()), None)

  def wait_until_finished(self) -> None:
    """Does nothing: checkpoints are complete when `save_checkpoint` returns."""

  def check_for_errors(self) -> None:
    """Does nothing: `save_checkpoint` raises them."""

  def close(self) -> None:
    """Does nothing."""


def save_checkpoint(
  train_state: TrainState,
  checkpoint_dir: str | os.PathLike,
  overwrite: bool = False,
  checkpoint_type: CheckpointType = CheckpointType.FLAX,
  state_specs: TrainState | None = None,
  async_checkpointer: Any = None,
  train_state_unpadded_shape_dtype_struct: TrainState | None = None,
  tensorstore_use_ocdbt: bool = False,
  async_options: Any = None,
) -> SavedCheckpoints:
  """Writes a state as `checkpoint_<step>/state/checkpoint`, flax's msgpack.

  Of several processes the first one writes. The checkpoint gets its name when
  all of it is written.

  Args:
    train_state: the state, of one device or replicated by a sharding.
    checkpoint_dir: the folder of checkpoints, which may be new.
    overwrite: whether it is written also if there is one of this step, which
      it replaces, or of a later one; otherwise nothing is written then.
    checkpoint_type: must be FLAX.
    state_specs: has no effect.
    async_checkpointer: must be None.
    train_state_unpadded_shape_dtype_struct: shapes of the variables without
      padding; None for those of the state.
    tensorstore_use_ocdbt: must be False.
    async_options: has no effect.

  Raises:
    UserError: the type is another one, or an array is sharded.
  """
  del state_specs, async_options
  if checkpoint_type != CheckpointType.FLAX or tensorstore_use_ocdbt:
    raise errors.UserError(
      'save_checkpoint writes checkpoint_type=CheckpointType.FLAX; expected'
      ' that, without tensorstore_use_ocdbt, or an experiment, whose state is'
      ' written sharded'
    )
  if async_checkpointer is not None:
    raise errors.UserError(
      'save_checkpoint: async_checkpointer is not supported; expected None'
    )
  folder = job_dir.answering_path(checkpoint_dir)
  saved = SavedCheckpoints(folder)
  step = py_utils.maybe_unreplicate_for_fully_replicated(train_state.step)
  step = int(np.asarray(step).item())
  steps = saved.all_steps()
  if steps and max(steps) >= step and not overwrite:
    return saved
  shapes = train_state_unpadded_shape_dtype_struct or train_state
  content = _serialized(train_state)
  metadata = json.dumps(
    {
      'version': _VERSION,
      'train_state_metadata': {'mdl_vars': _metadata(shapes.mdl_vars)},
    }
  )
  if jax.process_index() == 0:
    name = checkpoint_paths.checkpoint_name(step, CheckpointType.FLAX)
    _write(
      folder,
      name,
      {'state/checkpoint': content, 'metadata/metadata': metadata.encode()},
    )
  py_utils.sync_global_devices('save_checkpoint')
  return saved


def _serialized(state: TrainState) -> bytes:
  leaves, structure = jax.tree.flatten(state)
  for leaf in leaves:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
      continue
    if not leaf.is_fully_replicated:
      raise errors.UserError(
        f'save_checkpoint: an array {list(leaf.shape)} is sharded over several'
        ' processes, which is not supported; expected an experiment, whose'
        ' state is written sharded'
      )
  values = jax.device_get(leaves)
  return serialization.msgpack_serialize(
    {'flattened_state': values, 'str_pytree_state': str(structure)}
  )


def _metadata(tree: Any) -> Any:
  """Returns what Pax writes of each array."""
  if isinstance(tree, Mapping):
    return {key: _metadata(child) for key, child in tree.items()}
  return {
    '_array_metadata_tag': True,
    'dtype': str(np.dtype(tree.dtype)),
    'is_optax_masked_node': False,
    'unpadded_shape': list(tree.shape),
  }


def _write(folder: Any, name: str, contents: Mapping[str, bytes]):
  """Writes a checkpoint's files; it gets its name, or its mark, at the end."""
  is_remote = remote.is_remote(folder)
  target = folder / name
  half = folder / f'.{name}.{uuid.uuid4().hex[:8]}.half'
  where = target if is_remote else half
  with files.explained(folder):
    if is_remote and files.is_there(target):
      files.delete_folder(target)
    for path, content in contents.items():
      file = where / path
      files.make_folder(file.parent)
      files.replace(file, content)
      files.replace(file.parent / COMMIT_SUCCESS_FILE, b'committed\n')
    files.replace(where / COMMIT_SUCCESS_FILE, b'committed\n')
    if not is_remote:
      if files.is_there(target):
        files.delete_folder(target)
      os.replace(half, target)


def restore_checkpoint(
  state_global_shapes: TrainState,
  checkpoint_dir: str | os.PathLike,
  global_mesh: jax.sharding.Mesh | None = None,
  checkpoint_type: CheckpointType = CheckpointType.FLAX,
  state_specs: TrainState | None = None,
  step: int | None = None,
  enforce_restore_shape_check: bool = False,
  state_unpadded_shape_dtype_struct: TrainState | None = None,
  tensorstore_use_ocdbt: bool = False,
  restore_transformations: Mapping[str, Any] | None = None,
) -> TrainState:
  """Returns the state of a checkpoint.

  Arrays of the checkpoint that the state lacks are ignored. The variables of
  the state may also be those of the collection `params` without its name, as in
  `mdl_vars={'lm': ...}`.

  Args:
    state_global_shapes: a state, or shapes of one: what is restored.
    checkpoint_dir: the folder of checkpoints.
    global_mesh: with it arrays are sharded by `state_specs`.
    checkpoint_type: has no effect: each type is recognized.
    state_specs: a state of `PartitionSpec`s; without a mesh it has no effect.
    step: of the checkpoint; None for the newest.
    enforce_restore_shape_check: has no effect: shapes are always compared.
    state_unpadded_shape_dtype_struct: has no effect: shapes are those of
      `state_global_shapes`.
    tensorstore_use_ocdbt: has no effect: OCDBT is recognized.
    restore_transformations: must be None.

  Returns:
    The state with the dtypes of `state_global_shapes`: numpy arrays, with a
    mesh JAX arrays.

  Raises:
    ValueError: the folder has no checkpoint, or the state is not a
      `TrainState`.
    UserError: the checkpoint lacks arrays, has them in another shape, or cannot
      be read.
  """
  del checkpoint_type, enforce_restore_shape_check
  del state_unpadded_shape_dtype_struct, tensorstore_use_ocdbt
  if not isinstance(state_global_shapes, TrainState):
    raise ValueError(
      f'restore_checkpoint: got a {type(state_global_shapes).__name__};'
      ' expected a TrainState, such as the first of the two values of'
      ' trainer_lib.initialize_model_state'
    )
  if restore_transformations is not None:
    raise errors.UserError(
      'restore_checkpoint: restore_transformations is not supported; expected'
      ' None, or init_from_checkpoint_rules of a task'
    )
  source = _source(checkpoint_dir, step)
  leaves, structure = jax.tree.flatten(state_global_shapes)
  names = pax_trees.leaf_names(str(structure))
  arrays = _arrays_of(names, source)
  if global_mesh is None or state_specs is None:
    likes = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in leaves]
  else:
    specs = structure.flatten_up_to(state_specs)
    likes = [
      jax.ShapeDtypeStruct(
        np.shape(x), x.dtype, sharding=NamedSharding(global_mesh, spec)
      )
      for x, spec in zip(leaves, specs, strict=True)
    ]
  requests = {
    name: sources.Request(array, like)
    for name, array, like in zip(names, arrays, likes, strict=True)
  }
  sources.check_fits(source, requests, 'expected a state of these shapes')
  return structure.unflatten(_read(source, requests))


def _source(
  checkpoint_dir: str | os.PathLike, step: int | None
) -> pax_source.PaxSource:
  """Returns the checkpoint of a step, or the newest one."""
  folder = job_dir.answering_path(checkpoint_dir)
  found = checkpoint_paths.by_step(folder)
  if not found:
    raise ValueError(f'{folder} has no checkpoint, or does not exist')
  chosen = max(found) if step is None else step
  if chosen not in found:
    raise ValueError(
      f'{folder} has no checkpoint of step {chosen}, but of'
      f' {", ".join(map(str, found))}'
    )
  return pax_source.PaxSource(found[chosen], chosen)


def _arrays_of(names: list[str], source: pax_source.PaxSource) -> list[str]:
  """Returns the array of the checkpoint for each leaf."""
  found = [_array_of(name, source) for name in names]
  missing = [n for n, a in zip(names, found, strict=True) if a is None]
  of_learner = [n for n in missing if n.startswith(_OPT_STATES)]
  others = [n for n in missing if n not in of_learner]
  if others:
    lines = errors.listed(others, _MAX_LISTED)
    for i, name in enumerate(others[:_MAX_LISTED]):
      lines[i] += errors.did_you_mean(name, source.arrays)
    raise errors.UserError(
      f'{source.path} lacks arrays of the state:\n  ' + '\n  '.join(lines)
    )
  if of_learner:
    raise errors.UserError(
      f'{source.path} lacks {len(of_learner)} arrays of the state of the'
      f' learner, such as {of_learner[0]}: it has none, or it was written by'
      ' Pax, whose learners have others; expected a state without that of the'
      ' learner, states.to_eval_state(), or init_from_checkpoint_rules with'
      ' load_opt_states (docs/warm_start.md)'
    )
  return found


def _array_of(name: str, source: pax_source.PaxSource) -> str | None:
  for candidate in (
    name,
    name.replace(_OF_PARAMS, _VARIABLES, 1),
    name.replace(_VARIABLES, _OF_PARAMS, 1),
  ):
    if candidate in source.arrays:
      return candidate
  return None


def _read(source, requests: Mapping[str, sources.Request]) -> list[Any]:
  if any(one.like.sharding is not None for one in requests.values()):
    return list(source.read(requests).values())
  return [
    np.asarray(source.region(one.name, ...)).astype(one.like.dtype)
    for one in requests.values()
  ]
