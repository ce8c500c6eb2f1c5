"""Applies `path : value` overrides to Lingvo Params, without `eval`.

The syntax is that of Lingvo's `--model_params_override`, `Params.ToText` and
`Params.FromText`:

    task.train.learning_rate : 0.5; task.lm.emb.vocab_size : 76
    # A comment. A value in quotes may contain semicolons and line ends.
    task.name : 'lm'

`param_values` lists the values of each type.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from absl import logging

from adaptors.params import param_values, params_trees
from pax_compat import errors

# None by default; its value is a path, which is usually written without quotes.
_TEXT_FIELDS = ('task.train.init_from_checkpoint_override',)

_QUOTED = re.compile(
  r"""(['"])((?:\\.|(?!\1)[^\\])*)\1[ \t\r]*(?=[;\n]|$)""", re.S
)
_BARE = re.compile(r'[^;\n]*')
_ESCAPED = re.compile(r"""\\([\\'"])""")


@dataclasses.dataclass(frozen=True)
class _Value:
  """The string of a value.

  Attributes:
    text: the string without its quotes.
    quoted: whether it was in quotes.
  """

  text: str
  quoted: bool = False


def apply_override(params: Any, text: str):
  """Sets fields of Lingvo Params.

  On an error no field is set.

  Args:
    params: Lingvo Params, usually of a model. They are changed.
    text: `path : value` pairs, separated by `;` or line ends.

  Raises:
    UserError: the text cannot be parsed, a path does not exist, or a value has
      the wrong type.
  """
  fields = dict(_fields(params, ''))
  changes = []
  for key, value in _pairs(text):
    path = key.replace('"', "'")
    if path not in fields:
      raise errors.UserError(
        f'override: no field is called {key!r}'
        + errors.did_you_mean(path, fields)
      )
    owner, name = fields[path]
    old = owner.Get(name)
    changes.append((path, owner, name, old, _new_value(path, old, value)))
  for path, owner, name, old, new in changes:
    logging.debug('override: %s: %r -> %r', path, old, new)
    owner.Set(**{name: new})


def _fields(
  value: Any, path: str, owner: Any = None, within: str = ''
) -> Iterator[tuple[str, tuple[Any, str]]]:
  """Yields each field with the Params on which it is set.

  Args:
    value: Params, or the value of a field of Params.
    path: the path of `value`, as in `ToText`.
    owner: the nearest Params around `value` that are not frozen.
    within: the path of `value` in `owner`.

  Yields:
    (path, (owner, path in owner)) with the latter for `Set` and `Get`.
  """
  if params_trees.is_params(value):
    # Frozen Params, such as those of initializers, are set from outside.
    if owner is None or not value.IsImmutable():
      owner, within = value, ''
    for name, child in value.IterParams():
      here = f'{within}.{name}' if within else name
      child_path = f'{path}.{name}' if path else name
      yield child_path, (owner, here)
      yield from _fields(child, child_path, owner, here)
  elif isinstance(value, (dict, list, tuple)):
    for key, child in _elements(value):
      yield from _fields(child, path + key, owner, within + key)


def _elements(value: Any) -> Iterator[tuple[str, Any]]:
  """Yields the (path suffix, value) of a container's elements."""
  if isinstance(value, dict):
    for name, child in value.items():
      yield f"['{name}']", child
  else:
    for i, child in enumerate(value):
      named = _is_named(child)
      yield (f'[{child[0]}]', child[1]) if named else (f'[{i}]', child)


def _is_named(value: Any) -> bool:
  """Whether a value is a (name, Params) pair, as in a list of sub-layers."""
  return (
    isinstance(value, tuple)
    and len(value) == 2
    and isinstance(value[0], str)
    and params_trees.is_params(value[1])
  )


def _pairs(text: str) -> Iterator[tuple[str, _Value]]:
  """Yields the (path, value) pairs of an override."""
  position = 0
  while position < len(text):
    item = _BARE.match(text, position)
    if not item.group().strip() or item.group().lstrip().startswith('#'):
      position = item.end() + 1
      continue
    key, colon, _ = item.group().partition(':')
    if not colon or not key.strip():
      raise errors.UserError(
        f'override: {item.group().strip()!r} is not of the form `path : value`'
      )
    value, position = _read_value(text, position + len(key) + 1)
    yield key.strip(), value


def _read_value(text: str, start: int) -> tuple[_Value, int]:
  """Returns a value and the position of the next pair."""
  while text[start : start + 1] in (' ', '\t'):
    start += 1
  if text[start : start + 1] in ('"', "'"):
    match = _QUOTED.match(text, start)
    if match is None:
      raise errors.UserError(
        'override: a quoted string must end with the same quote, with nothing'
        f' after it: {_BARE.match(text, start).group()!r}'
      )
    unescaped = _ESCAPED.sub(r'\1', match.group(2))
    return _Value(unescaped, quoted=True), match.end() + 1
  match = _BARE.match(text, start)
  return _Value(match.group().strip()), match.end() + 1


def _new_value(path: str, old: Any, value: _Value) -> Any:
  try:
    if path in _TEXT_FIELDS and value.text not in param_values.NONE:
      return value.text
    return param_values.convert(old, value.text, quoted=value.quoted)
  except param_values.WrongValueError as error:
    raise errors.UserError(
      f'override: {path} cannot be {value.text!r}: expected {error}'
      f' (it is {_shown(old)} now)'
    ) from error


def _shown(old: Any) -> str:
  text = f'{type(old).__name__} {old!r}'
  return f'{text[:80]}...' if len(text) > 80 else text
