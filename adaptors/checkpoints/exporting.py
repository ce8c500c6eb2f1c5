"""Exports a training state as a TensorFlow checkpoint, array by array."""

import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.checkpoints import counts, files, mapping
from pax_compat import checkpoints, errors

_STAGED = '.parts'
_PREFIX = 'part'


def write(
  state: Any,
  metadata: mapping.CheckpointMetadata,
  folder: str | os.PathLike,
  original: files.TensorflowCheckpoint | None = None,
) -> str:
  """Writes the checkpoint that Lingvo would write for a state.

  Tensors have the names of Lingvo's graph mode. Each array is written to a
  separate folder, renamed once complete. An interrupted export of the same
  state therefore resumes where it stopped.

  Args:
    state: of `TaskProgram`, on one process.
    metadata: of its task.
    folder: to write to, such as a run's `train`; created if needed.
    original: the Lingvo checkpoint that the run started from, if any. It
      supplies the padding rows of Lingvo's tables, which do not exist here.
      Without it they get their initial values, 0 for weights.

  Returns:
    The prefix of the checkpoint's files.

  Raises:
    UserError: a checkpoint of the same step exists.
  """
  # TensorFlow finds the newest checkpoint by an absolute path only.
  folder = pathlib.Path(folder).expanduser().absolute()
  arrays = checkpoints.state_paths(state)
  existing = () if original is None else original.shapes
  metadata = mapping.located(state, metadata, existing)
  numbers = mapping.counts_of(state, metadata).written(arrays)
  step = int(numbers[counts.GLOBAL_STEP])
  prefix = folder / f'ckpt-{step:08d}'
  if prefix.with_name(f'{prefix.name}.index').exists():
    raise errors.UserError(
      f'{prefix}.index already exists; expected a folder without a checkpoint'
      f' of step {step}'
    )
  staged = folder / f'{prefix.name}{_STAGED}'
  staged.mkdir(parents=True, exist_ok=True)
  constants = mapping.constants_of(state, metadata)
  unused = [one.name for one in constants if not one.is_setting]
  if unused:
    logging.info(
      '%d variables that training does not need, such as %s, are written as 0',
      len(unused),
      unused[0],
    )
  numbers |= {one.name: one.array() for one in constants if not one.like}
  saved = [_save(staged, 'counts', numbers)]
  unread = {one.like: one for one in constants if one.like}
  copies = {of: name for name, of in mapping.copies_of(state, metadata).items()}
  for leaf in mapping.unique_leaves_of(state, metadata):
    folder_of = staged / leaf.path
    if not folder_of.is_dir():
      tensors = _tensors(leaf, arrays[leaf.path], original)
      tensors |= {copies[t]: v for t, v in tensors.items() if t in copies}
      tensors |= {
        unread[t].name: unread[t].array(v.shape)
        for t, v in tensors.items()
        if t in unread
      }
      _save(staged, leaf.path, tensors)
    saved.append(str(folder_of / _PREFIX))
  tf = lingvo_runtime.module('tensorflow')
  tf.raw_ops.MergeV2Checkpoints(
    checkpoint_prefixes=saved,
    destination_prefix=str(prefix),
    delete_old_dirs=False,
  )
  shutil.rmtree(staged)
  tf.compat.v1.train.update_checkpoint_state(str(folder), prefix.name)
  return str(prefix)


def _tensors(
  leaf: mapping.Leaf,
  array: Any,
  original: files.TensorflowCheckpoint | None,
) -> dict[str, np.ndarray]:
  """Returns the tensors of an array."""
  array = np.asarray(jax.device_get(array))
  values = leaf.transform.to_lingvo(array)
  if sum(value.size for value in values) > array.size:
    masks = leaf.transform.to_lingvo(np.ones(array.shape, np.int8))
    values = [
      np.where(mask != 0, value, _padding(name, value, leaf, original))
      for name, value, mask in zip(leaf.tensors, values, masks, strict=True)
    ]
  return dict(zip(leaf.tensors, values, strict=True))


def _padding(
  name: str,
  value: np.ndarray,
  leaf: mapping.Leaf,
  original: files.TensorflowCheckpoint | None,
) -> np.ndarray:
  """Returns a tensor's values for elements that do not exist here."""
  if original is not None and original.shapes.get(name) == value.shape:
    return original.read(name)
  return np.asarray(leaf.initial_value, value.dtype)


def _save(staged: pathlib.Path, name: str, tensors: dict) -> str:
  """Saves tensors to a folder, which exists only once they are complete."""
  tf = lingvo_runtime.module('tensorflow')
  unfinished = staged / f'{name}.unfinished'
  shutil.rmtree(unfinished, ignore_errors=True)
  unfinished.mkdir()
  tf.raw_ops.SaveV2(
    prefix=str(unfinished / _PREFIX),
    tensor_names=list(tensors),
    shape_and_slices=[''] * len(tensors),
    tensors=[tf.constant(np.asarray(t, order='C')) for t in tensors.values()],
  )
  shutil.rmtree(staged / name, ignore_errors=True)
  return str(unfinished.rename(staged / name) / _PREFIX)
