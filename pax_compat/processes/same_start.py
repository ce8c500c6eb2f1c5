"""Processes that train together must have started alike.

A run has one seed of random numbers, one config and one version of the code. If
a process differs, every process stops before anything is trained, with an error
that names what differs.
"""

import difflib
import hashlib
import inspect
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pax_compat import errors
from pax_compat.configs import config_text
from pax_compat.processes import process_channel
from pax_compat.runs import versions

_CHANNEL = 'start'
# Settings of JAX that change numbers.
_SETTINGS = (
  'jax_default_matmul_precision',
  'jax_default_prng_impl',
  'jax_enable_x64',
  'jax_numpy_dtype_promotion',
  'jax_threefry_partitionable',
)
_PACKAGES = ('pax_compat', 'adaptors', 'lm_tasks')
_MAX_LINES = 10
# Where an object without a text of its own lies in this process.
_ADDRESS = re.compile(r' at 0x[0-9a-f]+')
_ABSENT = 'not given'
_CONFIG = 'config'
_SAME = 'the same'


def check(*, flag_values: Mapping[str, str], experiment: Any):
  """Raises if the processes of this run did not start alike.

  All processes call it together. With one process it does nothing.

  Args:
    flag_values: the given flags that all must have in common, by name.
    experiment: the `experiments.resolved.ResolvedExperiment`.

  Raises:
    UserError: they differ; on all processes.
  """
  if jax.process_count() == 1:
    return
  mine = {
    'flag': {f'--{name}': text for name, text in flag_values.items()},
    'setting of JAX': {n: str(getattr(jax.config, n)) for n in _SETTINGS},
    'version of': versions.of_libraries(),
    'code of': _code(experiment.experiment),
    _CONFIG: {'': _digest(_text(experiment))},
  }
  channel = process_channel.Channel(_CHANNEL)
  found = channel.agree(json.dumps(mine), _differences)
  if found == _SAME:
    return
  lines = json.loads(found)
  others = [line for line in lines if not line.startswith(f'{_CONFIG} ')]
  if len(others) < len(lines):
    # Only now, as the text is long.
    texts = channel.agree(_text(experiment), _different_lines)
    lines = [*others, *texts.splitlines()]
  raise errors.UserError(
    'the processes of this run did not start alike; expected the same command'
    ' and the same code in each:\n  ' + '\n  '.join(lines[:_MAX_LINES])
  )


def _differences(messages: Sequence[str]) -> str:
  """Returns `_SAME`, or what differs from process 0 as a JSON list."""
  first, *others = map(json.loads, messages)
  lines = []
  for kind, values in first.items():
    names = sorted({n for one in (first, *others) for n in one[kind]})
    for name in names:
      mine = values.get(name, _ABSENT)
      differing = [
        (index, one[kind].get(name, _ABSENT))
        for index, one in enumerate(others, 1)
        if one[kind].get(name, _ABSENT) != mine
      ]
      if differing:
        index, other = differing[0]
        more = f' (and {len(differing) - 1} more)' if differing[1:] else ''
        lines.append(
          f'{kind} {name}: {mine} in process 0, {other} in process'
          f' {index}{more}'
        )
  return json.dumps(lines) if lines else _SAME


def _different_lines(texts: Sequence[str]) -> str:
  """Returns the first lines of configs that differ from that of process 0."""
  lines = []
  for index, text in enumerate(texts[1:], 1):
    both = difflib.unified_diff(
      texts[0].splitlines(), text.splitlines(), lineterm='', n=0
    )
    for line in list(both)[2:]:
      if line.startswith(('-', '+')):
        process = 0 if line.startswith('-') else index
        lines.append(f'config in process {process}: {line[1:]}')
    if lines:
      break
  return '\n'.join(lines[:_MAX_LINES]) or _CONFIG


def _text(experiment: Any) -> str:
  """Returns the configs of the task and of all datasets."""
  text = config_text.to_text(experiment.configs())
  return _ADDRESS.sub('', text)


def _code(experiment: Any) -> dict[str, str]:
  """Returns digests of our packages, and of the experiment's module."""
  root = pathlib.Path(__file__).parents[2]
  found = {}
  for package in _PACKAGES:
    folder = root / package
    if folder.is_dir():
      digest = hashlib.sha256()
      for path in sorted(folder.rglob('*.py')):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
      found[package] = digest.hexdigest()[:12]
  for cls in type(experiment).__mro__:
    file = _file(cls)
    ours = (root / package for package in _PACKAGES)
    if file is not None and not any(map(file.is_relative_to, ours)):
      found[cls.__module__] = _digest(file.read_text('utf-8', 'replace'))
  return found


def _file(cls: type) -> pathlib.Path | None:
  try:
    path = pathlib.Path(inspect.getfile(cls))
  except (TypeError, OSError):  # Built in, or typed at a prompt.
    return None
  return path if path.is_file() else None


def _digest(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:12]
