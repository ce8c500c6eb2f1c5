"""User functions that return the dataset of an input."""

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
  """Binds the arguments of a dataset function.

  Args:
    function: a function, or a `Config` or Fiddle `Partial` of one. It gets
      those offered arguments that it has and that are not set.
    offered: arguments by name.
    where: the field with the function, for messages.

  Returns:
    A function without arguments.

  Raises:
    UserError: it is not a function, or requires another argument.
  """
  if isinstance(function, config_lib.Config):
    made, given = function.cls, config_lib.field_values(function)
    for name, value in given.items():
      if value is config_lib.REQUIRED:
        raise config_lib.RequiredError(made.__qualname__, name, where)
    function = functools.partial(made, **config_lib.set_fields(function))
  elif isinstance(function, fdl.Partial):
    function = config_lib.build_partial(function)
  if not callable(function):
    raise errors.UserError(
      f'{where} is {function!r}; expected a function, or a Config or Partial of'
      ' one'
    )
  return functools.partial(function, **_arguments_of(function, offered, where))


def asks_for(function: Any, name: str) -> bool:
  """Returns whether a function of `bound` has an argument, not set yet."""
  if isinstance(function, fdl.Buildable):
    if config_lib.is_set(function, name):
      return False
    function = fdl.get_callable(function)
  return name in _arguments(function)


def _arguments(function: Callable) -> dict[str, inspect.Parameter]:
  """Returns the keyword arguments of a function that are not set."""
  try:
    parameters = inspect.signature(function).parameters
  except (TypeError, ValueError):  # Some C functions have no signature.
    return {}
  is_partial = isinstance(function, functools.partial)
  already_set = function.keywords if is_partial else ()
  kinds = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
  )
  return {
    name: parameter
    for name, parameter in parameters.items()
    if parameter.kind in kinds and name not in already_set
  }


def _arguments_of(function, offered, where: str) -> dict[str, Any]:
  arguments = _arguments(function)
  missing = [
    name
    for name, parameter in arguments.items()
    if parameter.default is parameter.empty and name not in offered
  ]
  if missing:
    raise errors.UserError(
      f'{where} is a function that requires {", ".join(missing)}; expected them'
      f' to be set in a Config of it; the input sets {", ".join(offered)}'
    )
  return {name: value for name, value in offered.items() if name in arguments}
