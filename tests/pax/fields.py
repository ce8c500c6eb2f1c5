"""Configs of tasks against those of Pax, field by field.

Pax prints a config as lines `path : value`. `unexplained` looks each of them up
in a config of ours, and returns those that differ for no reason that is in
`differences`. Fields that Pax does not have must hold their default.
"""

import ast
import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from pax_compat import config as config_lib
from pax_compat.config import REQUIRED, Config
from tests.pax import differences

ABSENT = differences.ABSENT


def parsed(text: str) -> dict[str, Any]:
  """Returns the values of a config in Pax's text, by path.

  A class or dtype is its name.
  """
  lines = (line.partition(' : ') for line in text.splitlines())
  return {path: _value(value) for path, _, value in lines}


def _value(text: str) -> Any:
  if text == 'NoneType':
    return None
  if text.startswith('type/'):
    return text.rpartition('/')[2].rpartition('.')[2]
  return _without_names(ast.literal_eval(text))


def _without_names(value: Any) -> Any:
  """Returns a literal with None for 'NoneType', and lists for tuples."""
  if isinstance(value, list | tuple):
    return [_without_names(item) for item in value]
  return None if value == 'NoneType' else value


def unexplained(task: Config, text: str) -> list[str]:
  """Returns a line for each field that differs from Pax for no known reason.

  Args:
    task: config of a task.
    text: the same task in Pax, `path : value` lines.
  """
  wanted = parsed(text)
  found = []
  for path, value in wanted.items():
    ours = _plain(_at(task, path.split('.')))
    same = type(ours) is not type(ABSENT) and _same(ours, value)
    if not same and not differences.is_known(path, value, ours):
      found.append(f'{path}: {ours!r}, in Pax {value!r}')
  for path, value, default in _only_here(task, '', set(wanted)):
    if not differences.is_known(path, ABSENT, _plain(value)):
      found.append(f'{path}: {value!r}, not in Pax; by default {default!r}')
  return found


def _at(holder: Any, steps: list[str]) -> Any:
  """Returns the value at a path, `ABSENT` if there is none."""
  for step in steps:
    if isinstance(holder, Config):
      if step == 'cls':
        return config_lib.class_name(holder)
      values = config_lib.field_values(holder)
    elif isinstance(holder, dict):
      values = holder
    elif dataclasses.is_dataclass(holder):
      if step == 'cls':
        return type(holder).__name__
      values = vars(holder)
    else:
      return ABSENT
    if step not in values:
      return ABSENT
    holder = values[step]
  return holder


def _plain(value: Any) -> Any:
  """Returns a value as `parsed` has it."""
  if isinstance(value, enum.Enum):
    return value.value
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  if isinstance(value, type):  # Of the dtypes, those of JAX too.
    return np.dtype(value).name
  if isinstance(value, str):
    return value.rpartition('.')[2] if 'SingleTask.' in value else value
  return value


def _same(ours: Any, value: Any) -> bool:
  if ours is REQUIRED:
    return value == 0
  if value is None or ours is None or isinstance(value, bool):
    return ours is value
  return ours == value


def _only_here(
  config: Config, path: str, known: set[str]
) -> Iterator[tuple[str, Any, Any]]:
  """Yields the fields that are not in Pax and do not hold their default.

  Args:
    config: a config.
    path: its path.
    known: the paths of Pax.

  Yields:
    (path, value, default).
  """
  defaults = config_lib.field_values(Config(config.cls))
  for name, value in config_lib.field_values(config).items():
    at = f'{path}.{name}' if path else name
    if any(k == at or k.startswith(f'{at}.') for k in known):
      if isinstance(value, Config):
        inner = {k for k in known if k.startswith(f'{at}.')}
        yield from _only_here(value, at, inner)
      continue
    default = defaults.get(name, REQUIRED)
    if value is not default and value != default:
      yield at, value, default


def replaced(text: str, field: str, value: str) -> str:
  """Returns Pax's text of a config with another value of a field.

  Args:
    text: `path : value` lines.
    field: the last step of the paths whose value is replaced, unless it is not
      set.
    value: the value.
  """
  changed, count = re.subn(
    rf'^(.*\.{field} : )(?!NoneType|0$).*$', rf'\g<1>{value}', text, flags=re.M
  )
  assert count, field
  return changed
