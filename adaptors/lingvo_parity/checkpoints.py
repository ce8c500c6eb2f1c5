"""The weights in a TensorFlow checkpoint that Lingvo wrote."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from pax_compat import errors

# Below a run's folder, where Lingvo's trainer puts checkpoints.
_TRAIN = 'train'


def weights_of(path: str) -> Callable[[Mapping[str, Any]], dict]:
  """Returns a function from variables, by theta path, to their values.

  The function raises a UserError where the checkpoint lacks a variable, or has
  it in another shape.

  Args:
    path: of the checkpoint, without `.index`; or of a folder whose newest one
      is meant: that of a run, or its `train`.

  Raises:
    UserError: there is no such checkpoint.
  """
  tf = lingvo_runtime.module('tensorflow')
  found = _checkpoint(path)
  reader = tf.train.load_checkpoint(found)

  def read(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    names = {k: v.name.partition(':')[0] for k, v in variables.items()}
    _check(found, reader.get_variable_to_shape_map(), names, variables)
    return {path: reader.get_tensor(name) for path, name in names.items()}

  return read


def _checkpoint(path: str) -> str:
  """Returns the prefix of a checkpoint's files."""
  tf = lingvo_runtime.module('tensorflow')
  folders = [path, str(pathlib.Path(path, _TRAIN))]
  newest = [tf.train.latest_checkpoint(f) for f in folders]
  prefix = path.removesuffix('.index')
  if pathlib.Path(f'{prefix}.index').is_file():
    newest.insert(0, prefix)
  newest = [n for n in newest if n]
  if not newest:
    raise errors.UserError(
      f'--checkpoint={path}: there is no checkpoint of TensorFlow; expected a'
      ' path such as /runs/my_lm/train/ckpt-00001000, or the folder of a run'
    )
  return newest[0]


def _check(
  path: str,
  shapes: Mapping[str, list],
  names: Mapping[str, str],
  variables: Mapping[str, Any],
):
  """Raises a UserError that lists what a checkpoint lacks."""
  lines = []
  for theta, name in names.items():
    wanted = variables[theta].shape.as_list()
    if name not in shapes:
      lines.append(
        f'{name} (of {theta}) is missing'
        + errors.did_you_mean(name, shapes, count=1)
      )
    elif list(shapes[name]) != wanted:
      lines.append(
        f'{name} (of {theta}) has the shape {list(shapes[name])}; the'
        f' experiment has {wanted}'
      )
  if lines:
    raise errors.UserError(
      f'{path} does not hold the weights of this experiment:\n  '
      + '\n  '.join(lines)
    )
