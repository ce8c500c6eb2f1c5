"""Configs as text: one field a line, in a stable order, so that it diffs."""

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
  if isinstance(value, list | tuple) and any(
    isinstance(item, fdl.Buildable) for item in value
  ):
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


def _short(value: Any) -> str:
  """Returns a value as text that is the same in every process."""
  if isinstance(value, type):
    return value.__name__
  if hasattr(value, 'ToText'):  # Lingvo's Params, in their own text form.
    return '{' + '; '.join(value.ToText().split('\n')) + '}'
  if callable(value) and hasattr(value, '__qualname__'):
    return f'{value.__module__}.{value.__qualname__}'
  return repr(value)
