"""Class attributes that are search spaces of PyGlove.

`LR = pg.oneof([1e-3, 1e-2])` gives the values of a setting for `--study`.
Without a study, `--attr=LR=0.01` chooses one. PyGlove is not imported here: it
is loaded if an experiment has such an attribute.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pax_compat import config as config_lib
from pax_compat import errors


def is_one(value: Any) -> bool:
  """Whether a value is a search space of PyGlove."""
  pg = sys.modules.get('pyglove')
  return pg is not None and isinstance(value, pg.hyper.HyperPrimitive)


def is_range(hyper: Any) -> bool:
  """Whether a search space is a `pg.floatv`, not a `pg.oneof`.

  Raises:
    UserError: it is neither.
  """
  kinds = sys.modules['pyglove'].hyper
  if isinstance(hyper, kinds.Float):
    if hyper.scale not in (None, 'linear', 'log'):
      raise errors.UserError(
        f"pg.floatv with scale={hyper.scale!r} is not supported: use 'linear'"
        " or 'log'"
      )
    return True
  if isinstance(hyper, kinds.OneOf):
    return False
  raise errors.UserError(
    f'{type(hyper).__name__} of PyGlove is not supported: use pg.oneof or'
    ' pg.floatv'
  )


def candidates(hyper: Any) -> dict[str, Any]:
  """Returns the values of a `pg.oneof` by the text that chooses each.

  A number, string, list or dict is its own text, a class or function has its
  name, and any other value, or one of two with the same text, its number: `#0`.

  Raises:
    UserError: a value is a search space itself.
  """
  values = list(hyper.candidates)
  for value in values:
    if is_one(value):
      raise errors.UserError(
        'pg.oneof within pg.oneof is not supported: give all values in one'
      )
  found = [_text(value) for value in values]
  return {
    f'#{i}' if text is None or found.count(text) > 1 else text: value
    for i, (text, value) in enumerate(zip(found, values, strict=True))
  }


def chosen(hyper: Any, text: str, where: str) -> Any:
  """Returns the value of a search space that a text chooses.

  Args:
    hyper: the search space.
    text: a key of `candidates`, or a number within a range.
    where: the beginning of error messages.

  Raises:
    UserError: it is not one of the values.
  """
  if is_range(hyper):
    try:
      value = float(text)
    except ValueError:
      value = float('nan')
    if not hyper.min_value <= value <= hyper.max_value:
      raise errors.UserError(
        f'{where}: expected a number from {hyper.min_value} to'
        f' {hyper.max_value}, got {text!r}'
      )
    return value
  known = candidates(hyper)
  if text in known:
    return known[text]
  numbers = {_number(key): key for key in known}
  if _number(text) is not None and _number(text) in numbers:
    return known[numbers[_number(text)]]
  raise errors.UserError(
    f'{where}: {text!r} is not one of the values of the pg.oneof:'
    f' {", ".join(known)}'
  )


def require_none(name: str, hypers: Mapping[str, Any]):
  """Raises a UserError if an experiment has attributes that are not chosen."""
  if hypers:
    first = next(iter(hypers))
    raise errors.UserError(
      f'{name}.{first} is a search space of PyGlove; expected --study=NAME,'
      f' which searches, or a value of it: --attr={first}=value'
    )


def _text(value: Any) -> str | None:
  if isinstance(value, str):
    return value
  if value is None or isinstance(value, bool | int | float):
    return repr(value)
  if isinstance(value, list | tuple | dict):
    text = repr(_plain(value))
    return None if ' object at ' in text or '<' in text else text
  return getattr(value, '__name__', None)


def _plain(value: Any) -> Any:
  """Returns a list or dict of PyGlove as one of Python."""
  if isinstance(value, dict):
    return {key: _plain(one) for key, one in value.items()}
  if isinstance(value, list):
    return [_plain(one) for one in value]
  if isinstance(value, tuple):
    return tuple(_plain(one) for one in value)
  return value


def _number(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:
    return None


def check_configs(roots: Mapping[str, Any]):
  """Raises a UserError if a field of a config is a search space of PyGlove.

  Args:
    roots: configs and lists of configs, by name.
  """
  if 'pyglove' not in sys.modules:
    return
  for path, value in _leaves(roots):
    if is_one(value):
      raise errors.UserError(
        f'{path} is a search space of PyGlove; expected one as a class'
        f' attribute of the experiment, or --tune={path}=values'
      )


def _leaves(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields the values within configs, lists and dicts with their paths."""
  if isinstance(value, config_lib.Config):
    value = config_lib.set_fields(value)
  if isinstance(value, dict):
    for name, one in value.items():
      yield from _leaves(one, f'{path}.{name}' if path else str(name))
  elif isinstance(value, list | tuple):
    for i, one in enumerate(value):
      yield from _leaves(one, f'{path}[{i}]')
  else:
    yield path, value
