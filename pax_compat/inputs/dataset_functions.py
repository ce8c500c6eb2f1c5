"""Functions of the user's that make the data of an input."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from pax_compat import config as config_lib
from pax_compat import errors


def bound(
  function: Any, offered: Mapping[str, Any], *, where: str
) -> Callable[[], Any]:
  """Returns what makes the data: a function without arguments.

  Args:
    function: a function, or a `Config` or Fiddle `Partial` of one. It gets
      those of the offered arguments that it has and that are not set.
    offered: arguments by name.
    where: the field that holds it, for messages.

  Raises:
    UserError: it is no function, or needs another argument.
  """
  if isinstance(function, config_lib.Config):
    made, given = function.cls, config_lib.field_values(function)
    for name, value in given.items():
      if value is config_lib.REQUIRED:
        raise config_lib.RequiredError(made.__qualname__, name, where)
    function = functools.partial(made, **config_lib.set_fields(function))
  elif isinstance(function, fdl.Partial):
    function = fdl.build(function)
  if not callable(function):
    raise errors.UserError(
      f'{where} is {function!r}; expected a function, or a Config or Partial of'
      ' one'
    )
  return functools.partial(function, **_asked_for(function, offered, where))


def asks_for(function: Any, name: str) -> bool:
  """Returns whether a function of `bound` has an argument that is not set."""
  if isinstance(function, fdl.Buildable):
    if config_lib.is_set(function, name):
      return False
    function = fdl.get_callable(function)
  return name in _arguments(function)


def _arguments(function: Callable) -> dict[str, inspect.Parameter]:
  """Returns the arguments that can be given by name and are not set."""
  try:
    parameters = inspect.signature(function).parameters
  except (TypeError, ValueError):  # Some functions in C do not tell.
    return {}
  set_before = function.keywords if _is_partial(function) else ()
  kinds = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
  )
  return {
    name: parameter
    for name, parameter in parameters.items()
    if parameter.kind in kinds and name not in set_before
  }


def _is_partial(function: Any) -> bool:
  return isinstance(function, functools.partial)


def _asked_for(function, offered, where: str) -> dict[str, Any]:
  arguments = _arguments(function)
  missing = [
    name
    for name, parameter in arguments.items()
    if parameter.default is parameter.empty and name not in offered
  ]
  if missing:
    raise errors.UserError(
      f'{where} is a function that needs {", ".join(missing)}; expected these'
      f' to be set in a Config of it, and no others but {", ".join(offered)}'
    )
  return {name: value for name, value in offered.items() if name in arguments}
