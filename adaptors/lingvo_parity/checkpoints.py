"""Reads the weights of a TensorFlow checkpoint that Lingvo wrote."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from adaptors.checkpoints import files
from pax_compat import errors


def weights_of(path: str) -> Callable[[Mapping[str, Any]], dict]:
  """Returns a function that reads variables, by theta path, from a checkpoint.

  The function raises a UserError if the checkpoint lacks a variable, or has it
  with another shape.

  Args:
    path: of the checkpoint, without `.index`; or of a run's folder or its
      `train`, for the newest checkpoint in it.

  Raises:
    UserError: the checkpoint is missing.
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
  """Raises a UserError that lists the variables a checkpoint lacks."""
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
      f'{checkpoint.prefix} does not have the weights of this experiment:\n  '
      + '\n  '.join(lines)
    )
