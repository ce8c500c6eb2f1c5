"""Errors in the methods of registered experiments, such as `Task()`."""

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from adaptors.lingvo_registry import mounts
from adaptors.params import params_trees
from adaptors.stand_ins import renames
from pax_compat import errors


@contextlib.contextmanager
def of_method(name: str) -> Iterator[None]:
  """Raises errors of a method as UserErrors with their location.

  Args:
    name: of the method, for messages.
  """
  try:
    yield
  except errors.UserError:
    raise
  except Exception as error:
    what = _missing_field(error) or errors.one_line(error)
    place = errors.best_location_of(error)
    raise errors.UserError(
      f'{name} fails: {what} ({place}){renames.of_error(error)}'
      + _defined_in_checkout(error)
    ) from error


def _missing_field(error: Exception) -> str:
  """Returns a message for a field that Params lack; '' for other errors.

  Lingvo's own message lists all fields.
  """
  owner, name = _params_of(error)
  if owner is None:
    return ''
  cls = _class_of(owner)
  known = [key for key, _ in owner.IterParams()]
  return (
    f'the Params of {cls.__module__}.{cls.__qualname__} have no field'
    f' {name!r}{errors.did_you_mean(name, known)}'
  )


def _params_of(error: Exception) -> tuple[Any, str]:
  """Returns Params and the name of the field that they lack, or (None, '')."""
  traced = error.__traceback__
  while traced and traced.tb_next:
    traced = traced.tb_next
  if traced is None or not isinstance(error, AttributeError):
    return None, ''
  local = traced.tb_frame.f_locals
  owner, name = local.get('self'), local.get('name')
  if params_trees.is_params(owner) and str(error).startswith(str(name)):
    return owner, name
  return None, ''


def _class_of(params: Any) -> type:
  cls = params_trees.get(params, 'cls')
  return cls if inspect.isclass(cls) else type(params)


def _defined_in_checkout(error: Exception) -> str:
  """Returns where a checkout defines a missing field, or ''."""
  owner, name = _params_of(error)
  root = mounts.checkout()
  if owner is None or root is None:
    return ''
  definition = re.compile(rf'\bDefine\(\s*[\'"]{re.escape(name)}[\'"]')
  for base in _class_of(owner).__mro__:
    file = root.joinpath(*base.__module__.split('.')).with_suffix('.py')
    text = file.read_text('utf-8', 'replace') if file.is_file() else ''
    found = definition.search(text)
    if found:
      line = text.count('\n', 0, found.start()) + 1
      return (
        f'; {file}:{line} defines it, and the module of the installed Lingvo'
        ' is used; expected the changed class in a module of its own, which'
        ' the installation does not have'
      )
  return ''
