"""Messages for modules of the user that cannot be imported, and classes."""

import importlib
import pathlib
import re
import traceback

import adaptors
import pax_compat
from adaptors.lingvo_registry import mounts
from adaptors.stand_ins import renames
from pax_compat import errors

_LINGVO = 'lingvo.'
# What Lingvo's Milan recipes read if the variable is not set.
_UNSET = re.compile(r'/please-set-(\w+)-to-configure')
# Packages between the command line and the module.
_IMPORTING = tuple(
  str(pathlib.Path(package.__file__).parent)
  for package in (adaptors, importlib, pax_compat)
)


def describe(module: str, error: Exception, own_file: str | None) -> str:
  """Returns a message with the error and the files that led to it.

  Args:
    module: the module that was to be imported.
    error: what its import raised.
    own_file: its file; None if unknown.
  """
  [first, *others] = _files(error, own_file) or [errors.location_of(error)]
  text = (
    f'{module} cannot be imported: {first}: {type(error).__name__}: {error}'
  )
  if others:
    text += f' (it imports {", which imports ".join(others)})'
  return text + _advice(error)


def describe_new(name: str, error: Exception) -> str:
  """Returns a message for an experiment whose class cannot be instantiated.

  Args:
    name: of the experiment.
    error: what its `__init__` raised.
  """
  place = errors.best_location_of(error)
  text = f'{name} cannot be made: {errors.one_line(error)} ({place})'
  variable = _UNSET.search(str(error))
  if variable:
    text += f'; expected the environment variable {variable[1]}'
  return text


def _files(error: Exception, own_file: str | None) -> list[str]:
  """Returns `file:line` of each file, from the importing one to the innermost.

  Only the module's own file and what comes after it, if it was reached.
  """
  found: dict[str, str] = {}
  for frame in traceback.extract_tb(error.__traceback__):
    if not frame.filename.startswith('<'):  # Python's own importer.
      # The last line of a file that calls itself.
      found[frame.filename] = f'{frame.filename}:{frame.lineno}'
  if isinstance(error, SyntaxError) and error.filename:
    found[error.filename] = f'{error.filename}:{error.lineno}'
  names = list(found)
  if own_file in names:
    return [found[name] for name in names[names.index(own_file) :]]
  return [found[name] for name in names if not name.startswith(_IMPORTING)]


def _advice(error: Exception) -> str:
  """Returns what to do about a module or name that does not exist."""
  name = getattr(error, 'name', None) or ''
  hint = renames.of_error(error)
  if hint:
    return hint
  is_missing = isinstance(error, ModuleNotFoundError)
  if not (is_missing and name.startswith(_LINGVO)):
    return ''
  root = mounts.checkout()
  lacking = f'the installed Lingvo and {root} do' if root else 'Lingvo does'
  return (
    f'. {lacking[0].upper()}{lacking[1:]} not have {name}; expected'
    f' {"another" if root else "a"} checkout that has it, as --lingvo_source'
  )
