"""Configs and weights of experiments as text, and the files that hold it.

What is made from shapes alone: nothing is allocated, however large a model is.
"""

import difflib
import pathlib
import re
from collections.abc import Iterable

import jax

from pax_compat import base_layer, learners
from pax_compat.configs import config_text
from tests import source_tree

FOLDER = source_tree.ROOT / 'testdata' / 'golden'
REWRITE = 'python -m tests.golden_test --write'
# A part of a weight's path that tells the number of its layer.
_NUMBERED = re.compile(r'(.*?layers_)(\d+)(/.*)')


def text(task, batch) -> str:
  """Returns the config of a task, and a line for each weight.

  Weights that differ in the number of their layer only are one line.

  Args:
    task: config of a `SingleTask`.
    batch: a batch; only its shapes matter.
  """
  model = task.model.Instantiate()
  variables = jax.eval_shape(
    lambda key, batch: model.init_boxed({base_layer.PARAMS: key}, batch),
    jax.random.key(0),
    batch,
  )
  weights = learners.by_path(variables, base_layer.is_boxed)
  lines = joined(
    (path, _described(box))
    for path, box in weights.items()
    if base_layer.is_boxed(box)
  )
  return (
    config_text.to_text(task, 'task', checked=True)
    + '\n'
    + '\n'.join(lines)
    + '\n'
  )


def _described(box) -> str:
  weight = box.meta
  split = weight.tensor_split_dims_mapping
  return (
    f'{box.value.dtype}{list(box.value.shape)},'
    f' {weight.init.method}({weight.init.scale:.6g})'
    + (f', split {list(split)}' if split is not None else '')
  )


def joined(weights: Iterable[tuple[str, str]]) -> list[str]:
  """Returns a line for weights of several layers that are described alike."""
  layers: dict[tuple[str, str, str], list[int]] = {}
  for path, described in weights:
    found = _NUMBERED.fullmatch(path)
    before, number, after = found.groups() if found else (path, None, '')
    numbers = layers.setdefault((before, after, described), [])
    numbers += [] if number is None else [int(number)]
  return [
    f'{before}{_ranges(numbers)}{after}: {described}'
    for (before, after, described), numbers in layers.items()
  ]


def _ranges(numbers: list[int]) -> str:
  """Returns numbers as text: `3`, or `[0-3,7]` of several."""
  parts: list[list[int]] = []
  for number in sorted(numbers):
    if parts and number == parts[-1][-1] + 1:
      parts[-1].append(number)
    else:
      parts.append([number])
  shown = ','.join(f'{p[0]}-{p[-1]}' if p[1:] else f'{p[0]}' for p in parts)
  return f'[{shown}]' if len(numbers) > 1 else shown


def changes(made: str, base: str, base_name: str) -> str:
  """Returns the text of an experiment by what it has unlike another one.

  Args:
    made: the text.
    base: that of the other.
    base_name: its name.
  """
  lines = difflib.unified_diff(
    base.splitlines(), made.splitlines(), lineterm='', n=0
  )
  kept = [line for line in list(lines)[2:] if not line.startswith('@@')]
  return '\n'.join([f'as {base_name}, but for:', *kept]) + '\n'


def check(path: pathlib.Path, made: str):
  """Fails where a file does not hold the text."""
  expected = path.read_text('utf-8') if path.exists() else ''
  lines = difflib.unified_diff(
    expected.splitlines(), made.splitlines(), 'file', 'now', lineterm=''
  )
  found = '\n'.join(lines)
  assert not found, f'{found}\nif it is meant so: {REWRITE}'


def write(folder: pathlib.Path, texts: dict[str, str]):
  """Writes the files of a folder anew; those of other names go."""
  folder.mkdir(parents=True, exist_ok=True)
  for path in folder.glob('*.txt'):
    path.unlink()
  for name, made in texts.items():
    (folder / f'{name}.txt').write_text(made, 'utf-8')
