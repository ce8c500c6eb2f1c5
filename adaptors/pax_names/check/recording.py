"""What was recorded of Pax, in folders."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from adaptors.pax_names.check.numbers import Numbers
from pax_compat import errors

_VARIABLES = 'pax_variables.json'
_NUMBERS = 'pax_numbers'


def check(folder: pathlib.Path):
  """Raises a UserError if a folder has no recording."""
  if not ((folder / _VARIABLES).is_file() or (folder / _NUMBERS).is_dir()):
    raise errors.UserError(
      f'{folder} has no recording of Pax; expected a folder that contains'
      f' {_VARIABLES} or {_NUMBERS}'
    )


def variables(folders: Iterable[pathlib.Path]) -> dict[str, Mapping[str, list]]:
  """Returns {path: [shape, split, dtype]} by experiment, `tasks.**.Class`."""
  found = {}
  for folder in folders:
    path = folder / _VARIABLES
    if path.is_file():
      found |= json.loads(path.read_text('utf-8'))
  return found


def numbers(folders: Iterable[pathlib.Path]) -> dict[str, pathlib.Path]:
  """Returns the files by the end of an experiment's name, `module.Class`."""
  return {
    path.stem: path
    for folder in folders
    for path in sorted((folder / _NUMBERS).glob('*.npz'))
  }


def of_file(path: pathlib.Path) -> tuple[dict[str, np.ndarray], Numbers]:
  """Returns the batch and the numbers of a recording of one experiment.

  Args:
    path: a file with the arrays `params/...`, `batch/...`, `metrics/...`,
      `weights/...` and `grads/...`.
  """
  parts: dict[str, dict[str, np.ndarray]] = {}
  with np.load(path, allow_pickle=False) as arrays:
    for key, x in arrays.items():
      kind, _, name = key.partition('/')
      parts.setdefault(kind, {})[name] = x
  kinds = ('params', 'metrics', 'weights', 'grads')
  return parts['batch'], Numbers(**{kind: parts[kind] for kind in kinds})


def attributes(path: pathlib.Path) -> dict[str, Any]:
  """Returns the class attributes with which an experiment was recorded."""
  found = json.loads(path.with_suffix('.json').read_text('utf-8'))
  if 'FPROP_DTYPE' in found:
    found['FPROP_DTYPE'] = jnp.dtype(found['FPROP_DTYPE']).type
  return found


def dtype(path: pathlib.Path) -> Any:
  """Returns the dtype in which Pax computed a recording."""
  with np.load(path, allow_pickle=False) as arrays:
    # NumPy has no bfloat16: it reads two bytes without a meaning.
    kinds = {arrays[name].dtype.kind for name in arrays.files}
  return jnp.bfloat16 if 'V' in kinds else jnp.float32
