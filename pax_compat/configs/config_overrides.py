"""Sets config fields from strings `path=value`, as in `--set`.

Paths and values are written as `config_text.to_text` writes them. Values are
parsed, never evaluated.
"""

import ast
import dataclasses
import enum
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from pax_compat import config as config_lib
from pax_compat import errors

_STEP = re.compile(r'\.?([^.\[\]]+)|\[(\d+)\]')
# Usual names that NumPy lacks.
_SHORT_DTYPES = {
  'bf16': 'bfloat16',
  'fp16': 'float16',
  'fp32': 'float32',
  'f32': 'float32',
}
_WORDS = {'true': True, 'false': False, 'none': None}


def apply(roots: dict[str, Any], settings: Sequence[str]):
  """Sets fields of configs.

  Args:
    roots: configs, or lists of configs, by the first name of a path, such as
      {'task': config}.
    settings: strings `path=value`, applied in order.

  Raises:
    UserError: a path does not exist, or a value is not valid for its field. The
      settings before it are applied.
  """
  for setting in settings:
    path, equals, text = setting.partition('=')
    if not equals:
      raise errors.UserError(
        f'{setting!r}: expected path=value, such as'
        ' task.train.num_train_steps=100'
      )
    _set(roots, path.strip(), text.strip())


def _set(roots: dict[str, Any], path: str, text: str):
  steps = _steps(path)
  holder: Any = roots
  at = ''
  for step in steps[:-1]:
    holder = _get(holder, step, at)
    at = f'{at}[{step}]' if isinstance(step, int) else f'{at}.{step}'.strip('.')
  old = _get(holder, steps[-1], at)
  if holder is roots:
    raise errors.UserError(f'{path} is a config; set one of its fields')
  new = from_text(text, old, where=path)
  if isinstance(holder, config_lib.Config):
    setattr(holder, steps[-1], new)
  elif isinstance(holder, list | dict):
    holder[steps[-1]] = new
  else:
    raise errors.UserError(
      f'{path}: {at} is a {type(holder).__name__}, whose elements cannot be'
      ' set; set it as a whole'
    )


def _steps(path: str) -> list[str | int]:
  steps, end = [], 0
  for match in _STEP.finditer(path):
    if match.start() != end:
      break
    name, index = match.groups()
    steps.append(name if index is None else int(index))
    end = match.end()
  if end != len(path) or not steps:
    raise errors.UserError(
      f'{path!r} is not a path; expected names and [indices], such as'
      ' task.train.learner or datasets[0].batch_size'
    )
  return steps


def _get(holder: Any, step: str | int, at: str) -> Any:
  """Returns the field, item or element of `holder` that a step selects."""
  if isinstance(holder, config_lib.Config):
    known = config_lib.field_names(holder)
    if step in known:
      return config_lib.field_values(holder).get(step)
    what = f'{at} ({config_lib.class_name(holder)}) has no field {step!r}'
  elif isinstance(holder, dict):
    known = [str(key) for key in holder]
    if step in holder:
      return holder[step]
    what = f'{at} has no key {step!r}'
    if not at:
      what = f'unknown root {step!r}; expected {", ".join(known)}'
  elif isinstance(holder, list | tuple) and isinstance(step, int):
    known = []
    if step < len(holder):
      return holder[step]
    what = f'{at} has {len(holder)} elements, no [{step}]'
  elif isinstance(holder, list | tuple) and holder:
    named = [x for x in holder if getattr(x, 'name', None) == step]
    if len(named) == 1:
      return named[0]
    known = [f'{at}[{i}]' for i in range(len(holder))]
    raise errors.UserError(
      f'{at} is a list, without an element of the name {step!r}; expected'
      f' one of {", ".join(errors.listed(known, 3))}'
    )
  else:
    known = []
    what = f'{at} is {holder!r}, which has no field {step!r}'
  raise errors.UserError(what + errors.did_you_mean(str(step), known))


def from_text(text: str, old: Any, *, where: str) -> Any:
  """Returns the value that a string represents.

  Args:
    text: a number, True, False, None, a string with or without quotes, or a
      list, tuple or dict of these; the name of a dtype or of an enum member, or
      `Name(field=value)` for a dataclass such as WeightInit, if `old` is one.
    old: the current value of the field. The new value has its type, unless it
      is None or REQUIRED.
    where: the path of the field, for error messages.

  Raises:
    UserError: the string does not have the type of the field.
  """
  if isinstance(old, config_lib.Config) and text != 'None':
    raise errors.UserError(
      f'{where} is a config of {config_lib.class_name(old)}; set one of its'
      f' fields ({", ".join(config_lib.field_names(old)[:5])}, ...), or None'
    )
  if text == 'None':
    return None
  if isinstance(old, type) or isinstance(old, np.dtype):
    return _dtype(text, old, where)
  if isinstance(old, enum.Enum):
    return _member(text, type(old), where)
  if dataclasses.is_dataclass(old):
    return _dataclass(text, type(old), where)
  value = _literal(text)
  if isinstance(old, str):
    return value if isinstance(value, str) else text
  if old is None or old is config_lib.REQUIRED:
    return value
  return _like(value, old, text, where)


def _literal(text: str) -> Any:
  if text.lower() in _WORDS:
    return _WORDS[text.lower()]
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, RecursionError, MemoryError):
    return text


def _like(value: Any, old: Any, text: str, where: str) -> Any:
  """Returns a value, converted to the type of the one that it replaces."""
  if isinstance(old, list | tuple) and isinstance(value, list | tuple):
    return type(old)(value)
  kinds = (bool, int, float, dict, list, tuple)
  expected = next((k for k in kinds if isinstance(old, k)), None)
  if expected is None:
    raise errors.UserError(
      f'{where} is a {type(old).__name__}, which cannot be set by a string;'
      ' set it in the experiment'
    )
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if expected is float and is_number:
    try:
      return float(value)
    except OverflowError:
      raise errors.UserError(
        f'{where}: {text[:20]}... is not within the range of a float'
      ) from None
  is_whole = is_number and math.isfinite(value) and value == int(value)
  if expected is int and is_whole:
    return int(value)
  if type(value) is not expected:
    raise errors.UserError(
      f'{where}: expected {expected.__name__}, as in {old!r}, got {text!r}'
    )
  return value


def _dtype(text: str, old: Any, where: str) -> Any:
  name = text.strip('\'"').rpartition('.')[2]
  try:
    dtype = np.dtype(_SHORT_DTYPES.get(name, name))
  except TypeError:
    raise errors.UserError(
      f'{where}: expected the name of a dtype, such as float32 or bfloat16,'
      f' got {text!r}'
    ) from None
  return dtype if isinstance(old, np.dtype) else dtype.type


def _member(text: str, cls: type[enum.Enum], where: str) -> enum.Enum:
  name = text.rpartition('.')[2].strip('\'"')
  for member in cls:
    if member.value == name:
      return member
  if name not in cls.__members__:
    raise errors.UserError(
      f'{where}: {text!r} is not a {cls.__name__}'
      + errors.did_you_mean(name, cls.__members__)
    )
  return cls[name]


def _dataclass(text: str, cls: type, where: str) -> Any:
  """Returns the value of the dataclass `cls` that a string represents."""
  try:
    call = ast.parse(text, mode='eval').body
    if not isinstance(call, ast.Call) or call.args:
      raise ValueError
    if getattr(call.func, 'id', None) != cls.__name__:
      raise ValueError
    given = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    return cls(**given)
  except (ValueError, SyntaxError, TypeError):
    names = ', '.join(f'{f.name}=...' for f in dataclasses.fields(cls))
    raise errors.UserError(
      f'{where}: expected {cls.__name__}({names}), got {text!r}'
    ) from None
