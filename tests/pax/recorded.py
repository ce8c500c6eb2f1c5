"""What was recorded of Pax (see `record`), in `testdata/pax`.

Experiments are named `module.Class`, as in `c4.C4Spmd1BAdam4Replicas`.
"""

import functools
import json
import lzma
from collections.abc import Mapping
from typing import Any

import numpy as np

from adaptors.pax_names.check.numbers import Numbers
from tests import source_tree
from tests.pax import tiny

_FOLDER = source_tree.ROOT / 'testdata' / 'pax'
_CONFIGS = _FOLDER / 'configs.json.xz'
_NUMBERS = _FOLDER / 'numbers.npz'


def write(
  tasks: Mapping[str, str],
  variables: Mapping[str, Any],
  numbers: Mapping[str, Numbers],
):
  """Writes the files.

  Args:
    tasks: the configs of tasks, `path : value` lines, by experiment.
    variables: {path: [shape, split, dtype]} by experiment.
    numbers: of tiny models by experiment.
  """
  _FOLDER.mkdir(parents=True, exist_ok=True)
  text = json.dumps({'tasks': tasks, 'variables': variables})
  _CONFIGS.write_bytes(lzma.compress(text.encode(), preset=9))
  arrays = {
    f'{name}:{kind}:{path}': x
    for name, of_model in numbers.items()
    for kind, values in vars(of_model).items()
    for path, x in values.items()
  }
  with open(_NUMBERS, 'wb') as file:
    np.savez_compressed(file, **arrays)


@functools.cache
def _configs() -> dict[str, dict[str, Any]]:
  return json.loads(lzma.decompress(_CONFIGS.read_bytes()))


def tasks() -> dict[str, str]:
  """Returns the configs of tasks, `path : value` lines, by experiment."""
  return _configs()['tasks']


def variables() -> dict[str, dict[str, list]]:
  """Returns {path: [shape, split, dtype]} by experiment."""
  return _configs()['variables']


@functools.cache
def numbers() -> dict[str, Numbers]:
  """Returns what tiny models compute, by experiment."""
  found = {name: Numbers({}, {}, {}, {}) for name in tiny.EXPERIMENTS}
  with np.load(_NUMBERS, allow_pickle=False) as arrays:
    for key, x in arrays.items():
      name, kind, path = key.split(':')
      getattr(found[name], kind)[path] = x
  return found
