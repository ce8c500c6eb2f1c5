"""Which arguments of a class or function hold configs, by their annotations.

>>> class Block:
...   dense_tpl: fdl.Config
...   others: list[fdl.Config] | None
...   size: int
>>> sorted(templates(Block))
['dense_tpl', 'others']
"""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from pax_compat import errors


def templates(made: Callable[..., Any]) -> frozenset[str]:
  """Returns the arguments that stay configs when an object is built.

  These are annotated as configs, or as containers or unions with configs.

  Args:
    made: a class or a function.

  Raises:
    UserError: an annotation names something that does not exist.
  """
  try:
    return _cached(made)
  except TypeError:  # It has no hash.
    return _templates(made)


def _templates(made: Callable[..., Any]) -> frozenset[str]:
  if isinstance(made, functools.partial):
    return _templates(made.func)
  if not (inspect.isclass(made) or inspect.isroutine(made)):
    return frozenset()  # An object that is called: it has no annotations.
  try:
    hints = typing.get_type_hints(made)
    if inspect.isclass(made):
      hints = {**typing.get_type_hints(made.__init__), **hints}
  except NameError as e:
    raise errors.UserError(
      f'{made.__qualname__} has a config in a field, and annotations that'
      f' cannot be evaluated: {e}; import the name, since an annotation decides'
      ' whether a config is built or kept'
    ) from e
  return frozenset(name for name, hint in hints.items() if _has_config(hint))


_cached = functools.lru_cache(maxsize=4096)(_templates)


def _has_config(hint: Any) -> bool:
  origin = typing.get_origin(hint) or hint
  if isinstance(origin, type) and issubclass(origin, fdl.Buildable):
    return True
  return any(_has_config(part) for part in typing.get_args(hint))
