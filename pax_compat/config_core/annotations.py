"""Which arguments of a class or function hold configs, by their annotations.

>>> class Block:
...   dense_tpl: fdl.Config
...   others: list[fdl.Config] | None
...   size: int
>>> [is_template(Block, name) for name in ('dense_tpl', 'others', 'size')]
[True, True, False]
"""

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from pax_compat import errors


def is_template(made: Callable[..., Any], argument: str) -> bool:
  """Whether a config in an argument stays one when an object is built.

  That is so if the annotation is a config, or a container or union with one.

  Args:
    made: a class or a function.
    argument: its name.

  Raises:
    UserError: the annotation names something that does not exist.
  """
  while isinstance(made, functools.partial):
    made = made.func
  try:
    found = _cached(made).get(argument, False)
  except TypeError:  # It has no hash.
    found = _templates(made).get(argument, False)
  if isinstance(found, NameError):
    raise errors.UserError(
      f'{made.__qualname__} has a config in {argument!r}, whose annotation'
      f' cannot be evaluated: {found}; import the name, since an annotation'
      ' decides whether a config is built or kept'
    )
  return found


def _templates(made: Callable[..., Any]) -> Mapping[str, bool | NameError]:
  """Returns `is_template` of each argument with an annotation."""
  found = {}
  for name, annotation, scope in _annotations(made):
    try:
      # A class of its own, for the annotations beside it may not be valid.
      holder = type('_', (), {'__annotations__': {name: annotation}})
      found[name] = _has_config(typing.get_type_hints(holder, *scope)[name])
    except NameError as e:
      found[name] = e
  return found


_cached = functools.lru_cache(maxsize=4096)(_templates)


def _annotations(made: Any) -> Iterator[tuple[str, Any, tuple[dict, dict]]]:
  """Yields names and annotations, each with its globals and locals."""
  if inspect.isroutine(made):
    for name, annotation in getattr(made, '__annotations__', {}).items():
      yield name, annotation, (getattr(made, '__globals__', {}), {})
  if inspect.isclass(made):
    yield from _annotations(made.__init__)
    for base in reversed(made.__mro__):
      module = vars(sys.modules.get(base.__module__, typing))
      for name, annotation in vars(base).get('__annotations__', {}).items():
        yield name, annotation, (module, dict(vars(base)))


def _has_config(hint: Any) -> bool:
  origin = typing.get_origin(hint) or hint
  if isinstance(origin, type) and issubclass(origin, fdl.Buildable):
    return True
  if hasattr(origin, 'stands_for_config'):  # Some class's `HParams`.
    return True
  return any(_has_config(part) for part in typing.get_args(hint))
