"""Configs as text: one field a line, in a stable order, so that it diffs."""

import functools
from typing import Any

import fiddle as fdl

from pax_compat import config as config_lib


def to_text(config: fdl.Buildable, name: str = '') -> str:
  """Returns `path = value` lines for every field of a config.

  Args:
    config: the config; nested configs, lists, tuples and dicts are opened.
    name: what the paths begin with.

  Returns:
    The lines in the order in which the fields are declared. A config's class
    stands in a line of its own, before its fields.
  """
  return '\n'.join(_lines(config, name)) + '\n'


def _lines(value: Any, path: str) -> list[str]:
  if isinstance(value, fdl.Buildable):
    cls = fdl.get_callable(value)
    head = f'{path or "."} : {cls.__module__}.{cls.__qualname__}'
    children = config_lib.field_values(value).items()
    return [head] + _nested(children, path)
  if isinstance(value, dict) and value:
    return _nested(value.items(), path)
  if isinstance(value, list | tuple) and any(map(_has_parts, value)):
    return [
      line
      for i, item in enumerate(value)
      for line in _lines(item, f'{path}[{i}]')
    ]
  return [f'{path} = {_short(value)}']


def _nested(items, path: str) -> list[str]:
  return [
    line
    for key, item in items
    for line in _lines(item, f'{path}.{key}' if path else str(key))
  ]


def _has_parts(value: Any) -> bool:
  return isinstance(value, fdl.Buildable | dict | list | tuple)


def _short(value: Any) -> str:
  """Returns a value as text that is the same in every process."""
  if isinstance(value, type):
    return value.__name__
  if isinstance(value, set | frozenset):
    return '{' + ', '.join(sorted(map(_short, value))) + '}'
  if isinstance(value, list | tuple):
    inner = ', '.join(map(_short, value))
    return f'[{inner}]' if isinstance(value, list) else f'({inner})'
  if isinstance(value, functools.partial):
    given = [*map(_short, value.args)]
    given += [f'{k}={_short(v)}' for k, v in value.keywords.items()]
    return f'partial({", ".join([_short(value.func), *given])})'
  if hasattr(value, 'ToText'):  # Lingvo's Params, in their own text form.
    return '{' + '; '.join(value.ToText().split('\n')) + '}'
  if callable(value) and hasattr(value, '__qualname__'):
    return f'{value.__module__}.{value.__qualname__}'
  text = repr(value)
  # An address differs between processes.
  return text if ' at 0x' not in text else f'<{type(value).__qualname__}>'
