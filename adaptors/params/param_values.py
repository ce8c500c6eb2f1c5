"""Parses values of Lingvo Params from strings, without `eval`.

The syntax depends on the current value of the field:

| current value         | string                                            |
|-----------------------|---------------------------------------------------|
| bool                  | True, False, true, false                          |
| int, float            | a number                                          |
| str                   | any string, quoted or not; `[...]` is a list      |
| list, tuple, dict     | Python literals                                   |
| dtype                 | its name: float32                                 |
| enum                  | Class.MEMBER                                      |
| dataclass, namedtuple | a literal dict of the fields to change            |
| class, function       | type/<module>/<name>, of a module loaded before   |
| None                  | a Python literal, a quoted string, or type/...    |

`NoneType` (or `None`) is a value for fields with None, a class, a function, a
list, a tuple or a dict.
"""

import ast
import dataclasses
import enum
import sys
import types
from typing import Any

from adaptors.params import params_trees
from pax_compat import errors

NONE = ('None', 'NoneType')
_BOOLS = {'True': True, 'true': True, 'False': False, 'false': False}


class WrongValueError(Exception):
  """An invalid value for a field; the message says what was expected."""


def convert(old: Any, text: str, *, quoted: bool = False) -> Any:
  """Returns the value of a field of Params.

  Args:
    old: the current value.
    text: the string without its quotes.
    quoted: whether it was in quotes.

  Raises:
    WrongValueError: the string is not valid for this field.
  """
  if isinstance(old, str):
    return _text_or_list(text)
  if old is None:
    return _for_none(text, quoted)
  if isinstance(old, bool):
    return _choose(text, _BOOLS, 'a bool')
  if isinstance(old, enum.Enum):
    return _member(type(old), text)
  if isinstance(old, (int, float)):
    return _number(type(old), text)
  if _is_namedtuple(old) or _is_dataclass(old):
    return _with_fields(old, text)
  if isinstance(old, (list, tuple, dict)):
    return _container(type(old), text)
  if isinstance(old, (type, types.FunctionType)):
    return None if text in NONE else _loaded(old, text)
  if _is_dtype(old):
    return _dtype(text)
  raise WrongValueError(
    'values for its fields, one by one'
    if params_trees.is_params(old)
    else f'code that sets it: a string cannot describe a {type(old).__name__}'
  )


def _text_or_list(text: str) -> Any:
  # A file pattern may be one pattern or a list of them.
  if text.startswith('[') and text.endswith(']'):
    try:
      return ast.literal_eval(text)
    except (ValueError, SyntaxError):
      return text
  return text


def _for_none(text: str, quoted: bool) -> Any:
  if quoted:
    return text
  if text in NONE:
    return None
  if text in _BOOLS:
    return _BOOLS[text]
  if text.startswith('type/'):
    return _loaded(None, text)
  return _literal(text, 'a literal, a string in quotes or type/<module>/<name>')


def _literal(text: str, expected: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError) as error:
    raise WrongValueError(expected) from error


def _choose(text: str, choices: dict[str, Any], what: str) -> Any:
  if text not in choices:
    near = errors.near_names(text, choices) or list(choices)[:3]
    raise WrongValueError(f'{what}, such as {", ".join(near)}')
  return choices[text]


def _member(cls: type[enum.Enum], text: str) -> enum.Enum:
  members = {f'{cls.__name__}.{m.name}': m for m in cls}
  full = text if '.' in text else f'{cls.__name__}.{text}'
  return _choose(full, members, f'a {cls.__name__}')


def _number(cls: type, text: str) -> Any:
  try:
    return cls(text)
  except ValueError as error:
    what = 'an int' if cls is int else 'a float'
    raise WrongValueError(what) from error


def _container(cls: type, text: str) -> Any:
  if text in NONE:
    return None
  new = _literal(text, f'a {cls.__name__} of literals')
  # As in Lingvo, a list may replace a tuple and the reverse.
  expected = dict if issubclass(cls, dict) else (list, tuple)
  if not isinstance(new, expected):
    raise WrongValueError(f'a {cls.__name__} of literals')
  return new


def _is_namedtuple(value: Any) -> bool:
  return isinstance(value, tuple) and hasattr(value, '_fields')


def _is_dataclass(value: Any) -> bool:
  return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _with_fields(old: Any, text: str) -> Any:
  """Replaces fields of a dataclass or a namedtuple by those of a dict."""
  named = _is_namedtuple(old)
  names = old._fields if named else [f.name for f in dataclasses.fields(old)]
  fields = {name: getattr(old, name) for name in names}
  expected = f'a dict with fields of {type(old).__name__}: {", ".join(fields)}'
  new = _literal(text, expected)
  if not isinstance(new, dict) or not set(new) <= set(fields):
    raise WrongValueError(expected)
  # Values that are not literals, such as dtypes, are strings in the dict.
  changes = {
    name: convert(fields[name], value, quoted=True)
    if isinstance(value, str)
    else value
    for name, value in new.items()
  }
  return (
    old._replace(**changes) if named else dataclasses.replace(old, **changes)
  )


def _loaded(old: Any, text: str) -> Any:
  """Returns a class or function by name, without importing anything."""
  kind, _, rest = text.partition('/')
  module_name, _, name = rest.partition('/')
  if kind != 'type' or not name:
    raise WrongValueError('type/<module>/<name>')
  module = sys.modules.get(module_name)
  if module is None:
    raise WrongValueError(
      f'a loaded module; {module_name!r} is not, and an override'
      ' imports nothing'
    )
  kinds = (type, types.FunctionType) if old is None else type(old)
  if isinstance(old, type):
    kinds = type
  known = {n: v for n, v in vars(module).items() if isinstance(v, kinds)}
  if name not in known:
    raise WrongValueError(
      f'a name in {module_name}' + errors.did_you_mean(name, known)
    )
  return known[name]


def _is_dtype(value: Any) -> bool:
  """Whether a value is a dtype of TensorFlow, which is not loaded for this."""
  tf = sys.modules.get('tensorflow')
  return tf is not None and isinstance(value, tf.DType)


def _dtype(text: str) -> Any:
  tf = sys.modules['tensorflow']
  known = {n: d for n, d in vars(tf.dtypes).items() if isinstance(d, tf.DType)}
  return _choose(text.removeprefix('tf.'), known, 'a dtype')
