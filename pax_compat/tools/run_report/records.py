"""What is in the folder of a run: metrics, config, parameters, samples, log.

Only files are read: the experiment, its data and devices are not needed.
"""

import ast
import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pax_compat import errors
from pax_compat.runs import files, job_dir, run_log

_EXPERIMENT, _METRICS = 'experiment.json', 'metrics.jsonl'
# Of a run, and of jobs that evaluate and decode its checkpoints.
_ALL_METRICS = (_METRICS, 'eval_metrics.jsonl', 'decode_metrics.jsonl')
_LOGS = (
  run_log.FILE,
  *(f'{kind}_{run_log.FILE}' for kind in ('eval', 'decode')),
)
_OUTPUTS = re.compile(r'decode_out_(\d+)_shard_\d+\.jsonl')
_MAX_SAMPLES = 8
_COLUMNS = ['path', 'shape', 'count', 'dtype', 'sharding']


@dataclasses.dataclass(frozen=True)
class Curve:
  """The values of a metric.

  Attributes:
    steps: in ascending order.
    values: of each step; NaN and infinity are possible.
    times: seconds since 1970 at which each was written.
  """

  steps: list[int]
  values: list[float]
  times: list[float]


@dataclasses.dataclass(frozen=True)
class Parameter:
  """A variable of the model, a row of `parameters.txt`.

  Attributes:
    path: its path.
    shape: its dimensions.
    dtype: name of its dtype.
    sharding: mesh axes of the leading dimensions, each a tuple.
  """

  path: str
  shape: tuple[int, ...]
  dtype: str
  sharding: tuple[tuple[str, ...], ...]

  @property
  def count(self) -> int:
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    return math.ceil(self.count * _bits(self.dtype) / 8)

  def bytes_per_device(self, mesh: Mapping[str, int]) -> int:
    """Returns the bytes of the variable on each device of a mesh."""
    dims = list(self.shape)
    for i, axes in enumerate(self.sharding[: len(dims)]):
      dims[i] = math.ceil(dims[i] / math.prod(mesh.get(a, 1) for a in axes))
    return math.ceil(math.prod(dims) * _bits(self.dtype) / 8)


@dataclasses.dataclass(frozen=True)
class Samples:
  """The first decoded examples of a dataset.

  Attributes:
    dataset: its name.
    step: of the newest checkpoint that was decoded.
    examples: objects with the fields `key` and `value`.
  """

  dataset: str
  step: int
  examples: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
  """What the folder of a run contains.

  Attributes:
    label: a name that no other run of the report has.
    folder: its path.
    experiment: name of the experiment; '' if it is not known.
    version: of pax-compat at the start; '' if it is not known.
    created: time of the first start; '' if it is not known.
    curves: metrics by split and name.
    config: content of `config.txt`; '' if there is none.
    parameters: rows of `parameters.txt`.
    mesh: sizes of the mesh axes; empty if they are not known.
    samples: of the decoded datasets.
    logs: entries by file name; without the files that are missing.
  """

  label: str
  folder: str
  experiment: str
  version: str
  created: str
  curves: dict[tuple[str, str], Curve]
  config: str
  parameters: list[Parameter]
  mesh: dict[str, int]
  samples: list[Samples]
  logs: dict[str, list[run_log.Entry]]


def read(paths: Sequence[str]) -> list[Run]:
  """Reads the folders of runs.

  Args:
    paths: of the folders, local or `gs://bucket/folder`.

  Raises:
    UserError: one of them is not the folder of a run, has no metrics yet, or is
      given twice.
  """
  folders = [job_dir.answering_path(path) for path in paths]
  for i, folder in enumerate(folders):
    if folder in folders[:i]:
      raise errors.UserError(f'{paths[i]} is given twice; expected other runs')
    _check(paths[i], folder)
  return [
    _run(folder, label)
    for folder, label in zip(folders, labels(folders), strict=True)
  ]


def labels(folders: Sequence[Any]) -> list[str]:
  """Returns the shortest ends of paths that differ.

  >>> labels(['/runs/a/1', '/runs/b/1'])
  ['a/1', 'b/1']
  """
  parts = [os.fspath(folder).strip('/').split('/') for folder in folders]
  for count in range(1, max(map(len, parts)) + 1):
    ends = ['/'.join(one[-count:]) for one in parts]
    if len(set(ends)) == len(ends):
      break
  return ends


def _check(path: str, folder: Any):
  """Raises a UserError if a folder is not that of a run with metrics."""
  if not folder.exists():
    siblings = [p.name for p in files.children(folder.parent) if p.is_dir()]
    raise errors.UserError(
      f'{path}: folder not found' + errors.did_you_mean(folder.name, siblings)
    )
  names = {p.name for p in files.children(folder)} if folder.is_dir() else ()
  if _METRICS in names:
    return
  if _EXPERIMENT in names:
    raise errors.UserError(
      f'{path} has no {_METRICS} yet; expected a run that has made a step'
    )
  runs = [name for name in names if (folder / name / _EXPERIMENT).exists()]
  raise errors.UserError(
    f'{path} is not the folder of a run: it has no {_METRICS}; expected the'
    ' --job_log_dir of a run'
    + (f', such as {errors.short_list(runs)}' if runs else '')
  )


def _run(folder: Any, label: str) -> Run:
  curves = {}
  for name in _ALL_METRICS:
    curves |= _curves(_text(folder / name))
  if not curves:
    raise errors.UserError(
      f'{folder} has no metrics yet: {_METRICS} is empty; expected a run that'
      ' has made a step'
    )
  mark = _parsed(_text(folder / _EXPERIMENT)) or {}
  parameters, mesh = _parameters(_text(folder / 'parameters.txt'))
  logs = {name: run_log.parse(_text(folder / name)) for name in _LOGS}
  return Run(
    label=label,
    folder=os.fspath(folder),
    experiment=str(mark.get('name', '')),
    version=str(mark.get('version', '')),
    created=str(mark.get('created', '')),
    curves=curves,
    config=_text(folder / 'config.txt'),
    parameters=parameters,
    mesh=mesh,
    samples=_samples(folder / 'decode_out'),
    logs={name: entries for name, entries in logs.items() if entries},
  )


def _text(path: Any) -> str:
  """Returns the content of a file; '' if there is none."""
  try:
    return path.read_bytes().decode('utf-8', 'replace')
  except FileNotFoundError:
    return ''


def _parsed(line: str) -> dict | None:
  """Returns a JSON object; None for anything else."""
  try:
    found = files.parse_json(line)
  except ValueError:
    return None
  return found if isinstance(found, dict) else None


def _curves(text: str) -> dict[tuple[str, str], Curve]:
  """Returns curves of JSON lines; the last value of a step counts."""
  found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
  for line in text.splitlines():
    fields = _parsed(line)
    try:
      value = fields['value']
      value = float(fields['note'] if value is None else value)
      point = int(fields['step']), (value, float(fields['time']))
      of_metric = found.setdefault((fields['split'], fields['name']), {})
    except (KeyError, TypeError, ValueError):
      continue  # The last line of a run that is under way may be incomplete.
    of_metric[point[0]] = point[1]
  return {
    metric: Curve(
      steps=sorted(points),
      values=[points[step][0] for step in sorted(points)],
      times=[points[step][1] for step in sorted(points)],
    )
    for metric, points in found.items()
  }


def _parameters(text: str) -> tuple[list[Parameter], dict[str, int]]:
  """Returns the rows and the mesh of `parameters.txt`."""
  head, *lines = text.splitlines() or ['']
  if head.split() != _COLUMNS:
    return [], {}
  rows, mesh = [], {}
  for line in lines:
    cells = re.split(r' {2,}', line, maxsplit=len(_COLUMNS) - 1)
    if len(cells) == len(_COLUMNS):
      path, shape, _, dtype, sharding = cells
      dims = () if shape == 'scalar' else tuple(map(int, shape.split('x')))
      rows.append(Parameter(path, dims, dtype, _axes(sharding)))
    elif line.startswith('mesh '):
      axes = re.findall(r'(\w+) (\d+)', line.removeprefix('mesh '))
      mesh = {axis: int(size) for axis, size in axes}
  return rows, mesh


def _axes(sharding: str) -> tuple[tuple[str, ...], ...]:
  """Returns mesh axes of dimensions, of a tuple as Python prints it."""
  if sharding == 'replicated':
    return ()
  return tuple(
    () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    for axes in ast.literal_eval(sharding)
  )


def _bits(dtype: str) -> int:
  """Returns the bits of an element: 16 for `bfloat16`."""
  if dtype == 'bool':
    return 8
  found = re.match(r'[a-z]+(\d+)', dtype)
  return int(found[1]) if found else 32


def _samples(folder: Any) -> list[Samples]:
  """Returns the newest decoded examples of each dataset."""
  found = []
  for dataset in sorted(files.children(folder), key=lambda p: p.name):
    by_step = {}
    for path in files.children(dataset):
      if name := _OUTPUTS.fullmatch(path.name):
        by_step[int(name[1])] = path
    if by_step:
      step = max(by_step)
      examples = _first_objects(by_step[step])
      found.append(Samples(dataset.name, step, examples))
  return found


def _first_objects(path: Any) -> list[dict[str, Any]]:
  with path.open('r', encoding='utf-8', errors='replace') as file:
    lines = [line for line, _ in zip(file, range(_MAX_SAMPLES), strict=False)]
  return [found for found in map(_parsed, lines) if found is not None]


def shortened(value: Any, most: int) -> str:
  """Returns a value as text, at most so many characters of it."""
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= most else f'{text[: most - 3]}...'
