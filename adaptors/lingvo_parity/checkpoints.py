"""The weights in a TensorFlow checkpoint that Lingvo wrote."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from adaptors.checkpoints import files
from pax_compat import errors


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
  checkpoint = files.newest(path)

  def read(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    names = {k: v.name.partition(':')[0] for k, v in variables.items()}
    _check(checkpoint, names, variables)
    return {theta: checkpoint.read(name) for theta, name in names.items()}

  return read


def _check(
  checkpoint: files.TensorflowCheckpoint,
  names: Mapping[str, str],
  variables: Mapping[str, Any],
):
  """Raises a UserError that lists what a checkpoint lacks."""
  lines, shapes = [], checkpoint.shapes
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
      f'{checkpoint.prefix} does not hold the weights of this experiment:\n  '
      + '\n  '.join(lines)
    )
