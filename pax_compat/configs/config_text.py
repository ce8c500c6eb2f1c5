"""Configs as text: one line per field, in a stable order, so that it diffs.

>>> class Dense(config_lib.Configurable):
...   dims: int = config_lib.REQUIRED
...   use_bias: bool = True

>>> a = Dense.config(dims=4)
>>> b = a.clone().set(use_bias=False)
>>> print(diff(a, b, 'dense'), end='')
-dense.use_bias = True
+dense.use_bias = False
"""

import difflib
import enum
import functools
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from pax_compat import config as config_lib


def to_text(config: Any, name: str = '', *, checked: bool = False) -> str:
  """Returns `path = value` lines for every field of a config.

  Args:
    config: a config, or a list or dict of configs. Nested configs are included.
    name: the prefix of the paths.
    checked: whether `check_required` has passed: of a model with hundreds of
      layers it takes seconds.

  Returns:
    The lines in the order in which the fields are declared. The class of a
    config has a separate line before its fields. A shared config is written
    once; elsewhere a line refers to its first path. A field that a layer
    inherits from its parent has a line only if its template sets it.

  Raises:
    UserError: a required field is not set, other than those of templates, which
      layers set for their children.
  """
  if not checked:
    check_required(config, name)
  return '\n'.join(_lines(config, name, {})) + '\n'


def diff(a: fdl.Buildable, b: fdl.Buildable, name: str = '') -> str:
  """Returns the lines of `to_text` in which two configs differ.

  Args:
    a: the first config.
    b: the second config.
    name: the prefix of the paths.

  Returns:
    `-` before lines that only `a` has, `+` before those that only `b` has, in
    the order of the fields; '' if the configs are equal.
  """
  lines = difflib.ndiff(
    to_text(a, name).splitlines(), to_text(b, name).splitlines()
  )
  return ''.join(f'{line[0]}{line[2:]}\n' for line in lines if line[0] in '-+')


def changes(
  then: str, now: str, *, counts: Callable[[str], bool] = lambda path: True
) -> list[str]:
  """Returns the changed fields of configs, as `path = new, was old`.

  Args:
    then: the text of the earlier configs, as `to_text` returns it.
    now: the text of the present ones.
    counts: (path) -> whether a field is compared.
  """
  old, new = by_path(then), by_path(now)
  return [
    f'{path} = {new.get(path, "(absent)")}, was {old.get(path, "(absent)")}'
    for path in {**old, **new}
    if old.get(path) != new.get(path) and counts(path)
  ]


def by_path(text: str) -> dict[str, str]:
  """Returns the values and classes of a text of `to_text` by path."""
  found = {}
  for line in text.splitlines():
    path, equals, value = line.partition(' = ')
    if not equals:
      path, _, value = line.partition(' : ')
    found[path] = value
  return found


def check_required(value: Any, path: str = ''):
  """Raises an error with the full path of a required field that is not set.

  Args:
    value: a config, or the value of a field.
    path: the path of the value.

  Raises:
    RequiredError: a required field is not set.
    UserError: the setup of a layer fails.
  """
  if isinstance(value, config_lib.Config):
    # Layers check this themselves, because they set fields of their children.
    if hasattr(value.cls, 'check_required'):
      try:
        value.cls.check_required(value)
      except config_lib.RequiredError as e:
        raise e.within(path) from None
      return
    for field, item in config_lib.field_values(value).items():
      if item is config_lib.REQUIRED:
        raise config_lib.RequiredError(
          config_lib.class_name(value), field, path
        )
  for step, item in _items(value):
    check_required(item, _joined(path, step))


def _lines(value: Any, path: str, written: dict[int, str]) -> list[str]:
  """Returns the lines of a value.

  Args:
    value: the value.
    path: its path.
    written: paths of the configs that have lines already, by id. New ones are
      added.
  """
  if isinstance(value, fdl.Buildable):
    if id(value) in written:
      return [f'{path} : the same as {written[id(value)]}']
    written[id(value)] = path
    cls = fdl.get_callable(value)
    head = f'{path or "."} : {cls.__module__}.{cls.__qualname__}'
    return [head, *_nested(value, path, written)]
  if isinstance(value, dict) and value:
    return _nested(value, path, written)
  if isinstance(value, list | tuple) and _has_config(value):
    return _nested(value, path, written)
  return [f'{path} = {_short(value)}']


def _nested(value: Any, path: str, written: dict[int, str]) -> list[str]:
  return [
    line
    for step, item in _items(value)
    if not _is_inherited(value, step, item)
    for line in _lines(item, _joined(path, step), written)
  ]


def _is_inherited(holder: Any, field: str, value: Any) -> bool:
  """Whether a field is in `SILENT_UNLESS_SET` of its class, and is not set."""
  if not isinstance(holder, fdl.Buildable):
    return False
  if field not in getattr(fdl.get_callable(holder), 'SILENT_UNLESS_SET', ()):
    return False
  if isinstance(value, config_lib.Config):
    if all(v is None for v in config_lib.field_values(value).values()):
      return True
    default = config_lib.Config(fdl.get_callable(holder))
    return value == config_lib.set_fields(default).get(field)
  return not config_lib.is_set(holder, field)


def _items(value: Any) -> list[tuple[str, Any]]:
  """Returns the fields or items of a value by name, elements by `[i]`."""
  if isinstance(value, fdl.Buildable):
    return list(config_lib.field_values(value).items())
  if isinstance(value, dict):
    return [(str(key), item) for key, item in value.items()]
  if isinstance(value, list | tuple):
    return [(f'[{i}]', item) for i, item in enumerate(value)]
  return []


def _joined(path: str, step: str) -> str:
  return f'{path}.{step}' if path and not step.startswith('[') else path + step


def _has_config(value: Any) -> bool:
  return isinstance(value, fdl.Buildable) or any(
    _has_config(item) for _, item in _items(value)
  )


def _short(value: Any) -> str:
  """Returns a string for a value that is the same in every process."""
  if isinstance(value, type):
    return value.__name__
  if isinstance(value, enum.Enum):
    return f'{type(value).__name__}.{value.name}'
  if isinstance(value, set | frozenset):
    return '{' + ', '.join(sorted(map(_short, value))) + '}'
  if isinstance(value, list | tuple):
    inner = ', '.join(map(_short, value))
    if isinstance(value, list):
      return f'[{inner}]'
    return f'({inner},)' if len(value) == 1 else f'({inner})'
  if isinstance(value, functools.partial):
    given = [*map(_short, value.args)]
    given += [f'{k}={_short(v)}' for k, v in value.keywords.items()]
    return f'partial({", ".join([_short(value.func), *given])})'
  if hasattr(value, 'ToText'):  # Lingvo's Params.
    return '{' + '; '.join(value.ToText().split('\n')) + '}'
  if callable(value) and hasattr(value, '__qualname__'):
    return f'{value.__module__}.{value.__qualname__}'
  text = repr(value)
  # Addresses differ between processes.
  return text if ' at 0x' not in text else f'<{type(value).__qualname__}>'
