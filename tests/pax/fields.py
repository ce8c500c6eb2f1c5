"""Configs of tasks against those of Pax, field by field.

Pax prints a config as lines `path : value`. `unexplained` looks each of them up
in a config of ours, and returns those that differ for no reason that is in
`differences`. Fields that Pax does not have must hold their default.
"""

import ast
import dataclasses
import enum
import functools
import re
from collections.abc import Iterable, Mapping
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


@functools.cache
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
  ours = _Fields(wanted)
  ours.add(task, '')
  found = []
  for path, value in wanted.items():
    own = _plain(ours.values.get(path, ABSENT))
    same = own is not ABSENT and _same(own, value)
    if not same and not differences.is_known(path, value, own):
      found.append(f'{path}: {own!r}, in Pax {value!r}')
  for path, (value, default) in ours.changed.items():
    if not differences.is_known(path, ABSENT, _plain(value)):
      found.append(f'{path}: {value!r}, not in Pax; by default {default!r}')
  return found


class _Fields:
  """The fields of a config by path.

  Attributes:
    values: those that Pax has, too.
    changed: the others that do not hold their default: (value, default).
  """

  def __init__(self, wanted: Iterable[str]):
    self.values: dict[str, Any] = {}
    self.changed: dict[str, tuple[Any, Any]] = {}
    self._wanted = set(wanted)
    self._outer = {
      path[:end]
      for path in wanted
      for end in range(len(path))
      if path[end] == '.'
    }

  def add(self, holder: Any, path: str):
    """Adds the fields of a config, a dict or a dataclass at a path."""
    before = f'{path}.' if path else ''
    defaults: Mapping[str, Any] = {}
    if isinstance(holder, Config):
      values = config_lib.field_values(holder)
      defaults = _defaults(holder.cls)
      self.values[f'{before}cls'] = config_lib.class_name(holder)
    elif isinstance(holder, dict):
      values = holder
    else:
      values = vars(holder)
      self.values[f'{before}cls'] = type(holder).__name__
    for name, value in values.items():
      at = before + name
      if at in self._outer and _has_fields(value):
        self.add(value, at)
      elif at in self._wanted:
        self.values[at] = value
      else:
        default = defaults.get(name, REQUIRED)
        if value is not default and value != default:
          self.changed[at] = value, default


def _has_fields(value: Any) -> bool:
  return isinstance(value, Config | dict) or dataclasses.is_dataclass(value)


@functools.cache
def _defaults(cls: type) -> Mapping[str, Any]:
  return config_lib.field_values(Config(cls))


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
