"""Writes a run's state as a TensorFlow checkpoint, one array at a time."""

import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from adaptors import lingvo_runtime
from adaptors.lingvo_checkpoint import mapping
from adaptors.translate import optimizers
from pax_compat import checkpoints, errors
from pax_compat import optimizers as pax_optimizers

_PARTS = '.parts'


def write(state: Any, facts: mapping.Facts, folder: str | os.PathLike) -> str:
  """Writes the checkpoint that Lingvo would have at a state.

  Names are those of Lingvo's graph mode. Each array is written to a file of its
  own, and its folder gets its name when it is whole; so a run that was cut off
  goes on where it was, if the state is the same.

  Args:
    state: as of `TaskProgram`, on one process.
    facts: of its task.
    folder: to write to, such as a run's `train`; created if needed.

  Returns:
    The prefix of the checkpoint's files.

  Raises:
    UserError: a checkpoint of the same step is there.
  """
  # Absolute: TensorFlow finds no newest checkpoint by a relative path.
  folder = pathlib.Path(folder).expanduser().absolute()
  arrays = checkpoints.state_paths(state)
  step = int(arrays['step'])
  prefix = folder / f'ckpt-{step:08d}'
  if prefix.with_name(f'{prefix.name}.index').exists():
    raise errors.UserError(
      f'{prefix}.index is there already; expected a folder without a checkpoint'
      f' of step {step}'
    )
  parts = folder / f'{prefix.name}{_PARTS}'
  parts.mkdir(parents=True, exist_ok=True)
  saved = [_save(parts, 'steps', _steps(step, facts))]
  for leaf in mapping.leaves_of(state, facts):
    saved.append(_save_leaf(parts, leaf, arrays[leaf.path]))
  tf = lingvo_runtime.module('tensorflow')
  tf.raw_ops.MergeV2Checkpoints(
    checkpoint_prefixes=saved,
    destination_prefix=str(prefix),
    delete_old_dirs=False,
  )
  shutil.rmtree(parts)
  tf.compat.v1.train.update_checkpoint_state(str(folder), prefix.name)
  return str(prefix)


def _steps(step: int, facts: mapping.Facts) -> dict[str, np.ndarray]:
  """Returns the tensors that follow from the step."""
  tensors = {mapping.GLOBAL_STEP: np.int64(step)}
  optimizer = optimizers.wrapped(facts.optimizer)[-1]
  if optimizer.__fn_or_cls__ is pax_optimizers.Adam:
    betas = (optimizer.beta1, optimizer.beta2)
    for name, beta in zip(mapping.BETA_POWERS, betas, strict=True):
      tensors[name] = _power(beta, step + 1)
  return tensors


def _power(base: float, exponent: int) -> np.float32:
  """Returns a power with the rounding errors of one product a step."""
  base = result = np.float32(base)
  for _ in range(exponent - 1):
    before, result = result, result * base
    if result == before:
      break
  return result


def _save_leaf(parts: pathlib.Path, leaf: mapping.Leaf, array) -> str:
  folder = parts / leaf.path
  if folder.is_dir():
    return str(folder / 'part')
  values = leaf.transform.to_lingvo(np.asarray(jax.device_get(array)))
  return _save(parts, leaf.path, dict(zip(leaf.tensors, values, strict=True)))


def _save(parts: pathlib.Path, name: str, tensors: dict) -> str:
  """Saves tensors in a folder, which is there when they are whole."""
  tf = lingvo_runtime.module('tensorflow')
  unfinished = parts / f'{name}.unfinished'
  shutil.rmtree(unfinished, ignore_errors=True)
  unfinished.mkdir()
  tf.raw_ops.SaveV2(
    prefix=str(unfinished / 'part'),
    tensor_names=list(tensors),
    shape_and_slices=[''] * len(tensors),
    tensors=[tf.constant(np.asarray(t, order='C')) for t in tensors.values()],
  )
  shutil.rmtree(parts / name, ignore_errors=True)
  return str(unfinished.rename(parts / name) / 'part')
