"""The error type for invalid input of a user, and suggestions of names."""

import contextlib
import difflib
import functools
import importlib.util
import pathlib
import pkgutil
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# Letters of a name of which those that contain it are similar, at least.
_LEAST_CONTAINED = 3
# How similar the beginning or the end of a name is, at least.
_PART_CUTOFF = 0.75


class UserError(Exception):
  """A name, flag, field, file or checkpoint that cannot be used as given.

  The message states what is wrong, where, what was expected and the nearest
  valid choice, in a few lines. `pax_compat.main` prints it without a traceback
  and exits with status 2.
  """


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
  """Returns at most `count` known names that are similar to `name`.

  Similar are those with few differences; those that begin or end almost as
  `name`; and those that contain it or are contained in it.

  Args:
    name: the name that the user gave.
    known: the valid names, in any order.
    count: the maximum number of names.

  Returns:
    The nearest names, nearest first; empty if none is similar.
  """
  return [*_near_names(name, frozenset(known), count)]


# A field that only some configs have is looked for in each layer of a model.
@functools.lru_cache(maxsize=512)
def _near_names(name: str, known: frozenset[str], count: int) -> Sequence[str]:
  originals = {}  # By lower-case name: case only breaks ties.
  for other in sorted(known, key=lambda other: (other != name, other)):
    originals.setdefault(other.lower(), []).append(other)
  name = name.lower()
  near = difflib.get_close_matches(name, originals, count)
  size = len(name)
  if size >= _LEAST_CONTAINED:
    for part in (slice(size), slice(-size, None)):
      by_part = {other[part]: other for other in reversed(originals)}
      similar = difflib.get_close_matches(name, by_part, count, _PART_CUTOFF)
      near += [by_part[found] for found in similar]
  for other in originals:
    shorter, longer = sorted((name, other), key=len)
    if shorter in longer and len(shorter) >= _LEAST_CONTAINED:
      near.append(other)
  near = dict.fromkeys(near)
  return [other for lower in near for other in originals[lower]][:count]


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
  """Returns `; did you mean: a, b, c?`; an empty string if none is similar."""
  near = near_names(name, known, count)
  return f'; did you mean: {", ".join(near)}?' if near else ''


def wrong_field(owner: Any, field: str, expected: str) -> UserError:
  """Returns the error for the value of a field.

  Args:
    owner: an object of the class that has the field.
    field: its name.
    expected: which values are valid.
  """
  return UserError(
    f'{type(owner).__name__}.{field} is {getattr(owner, field)!r}; expected'
    f' {expected}'
  )


def check_known(what: str, value: Any, known: Iterable[Any]):
  """Raises a UserError if a value is not among the known ones."""
  known = list(known)
  if value not in known:
    names = list(map(str, known))
    raise UserError(
      f'{what} is {value!r}{did_you_mean(str(value), names)}; expected one of'
      f' {", ".join(names)}'
    )


def check_choice(owner: Any, field: str, known: Iterable[Any]):
  """Raises a UserError if the value of a field is not among the known ones."""
  check_known(f'{type(owner).__name__}.{field}', getattr(owner, field), known)


def check_least(owner: Any, least: float, *fields: str):
  """Raises a UserError for fields that are less than `least`; None may be."""
  for field in fields:
    value = getattr(owner, field)
    if value is not None and value < least:
      raise wrong_field(owner, field, f'{least} or more')


def compiled(pattern: str, where: str) -> re.Pattern:
  """Returns a compiled regular expression.

  Args:
    pattern: the expression.
    where: the field that has it, for messages.

  Raises:
    UserError: it is not a regular expression.
  """
  try:
    return re.compile(pattern)
  except (re.error, TypeError) as e:
    raise UserError(
      f'{where}: {pattern!r} is not a regular expression: {e}'
    ) from e


def missing_module(name: str, error: Exception) -> str | None:
  """Returns the message for a module that was not found, with similar names.

  Args:
    name: of the module.
    error: what importing it raised.

  Returns:
    None for other errors, such as that it exists, but imports a missing module.
  """
  missing = getattr(error, 'name', None)
  if not isinstance(error, ModuleNotFoundError) or not missing:
    return None
  if missing != name and not name.startswith(missing + '.'):
    return None
  text = f'module {name} not found'
  if name.endswith('.py'):
    return f'{text}; expected the name of a module, not of its file: ' + (
      _name_of_file(pathlib.PurePath(name))
    )
  package, _, last = missing.rpartition('.')
  if missing != name:
    text += f': {missing} is missing'
  return text + did_you_mean(last, _modules_in(package))


def _name_of_file(path: pathlib.PurePath) -> str:
  """Returns how the module of a file is named, and found."""
  if path.is_absolute():
    return f'{path.stem}, with {path.parent} on PYTHONPATH'
  return '.'.join(path.with_suffix('').parts)


def _modules_in(package: str) -> set[str]:
  """Returns names of the modules in a package; '' has all other ones."""
  if not package:
    return {module.name for module in pkgutil.iter_modules()}
  spec = importlib.util.find_spec(package)
  return {
    entry.stem
    for folder in (spec and spec.submodule_search_locations) or ()
    for entry in pathlib.Path(folder).glob('[!_.]*')
    if entry.is_dir() or entry.suffix == '.py'
  }


def listed(lines: Sequence[str], count: int) -> list[str]:
  """Returns the first lines, and how many more there are.

  >>> listed(['a', 'b', 'c'], 1)
  ['a', 'and 2 more']
  """
  more = len(lines) - count
  return [*lines[:count], *([f'and {more} more'] if more > 0 else ())]


def short_list(names: Sequence[Any], count: int = 3) -> str:
  """Returns the first names, and how many more there are.

  >>> short_list(['a', 'b', 'c', 'd'])
  'a, b, c and 1 more'
  """
  more = len(names) - count
  shown = ', '.join(map(str, names[:count]))
  return f'{shown} and {more} more' if more > 0 else shown


def location_in_user_code(error: Exception) -> str | None:
  """Returns `file:line` of the innermost traceback frame in user code.

  None if all frames are in this project, in installed packages or in Python.
  """
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    if is_user_code(frame.filename):
      return f'{frame.filename}:{frame.lineno}'
  return None


def best_location_of(error: Exception) -> str:
  """Returns `file:line` in user code if there is one, else the innermost."""
  return location_in_user_code(error) or location_of(error)


@contextlib.contextmanager
def of_user_code(name: str) -> Iterator[None]:
  """Raises errors of a user's function as UserErrors with their location.

  Args:
    name: of the function, for messages.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as e:
    location = best_location_of(e)
    raise UserError(f'{name} fails: {one_line(e)} ({location})') from e


def is_user_code(file: str) -> bool:
  """Whether a file is neither of this project, nor of a package, nor Python."""
  paths = sysconfig.get_paths()
  others = {paths[name] for name in ('stdlib', 'purelib', 'platlib')}
  others.add(str(pathlib.Path(__file__).parents[1]))
  return not file.startswith('<') and not any(
    pathlib.Path(file).is_relative_to(other) for other in others
  )


def location_of(error: Exception) -> str:
  """Returns `file:line` of the innermost traceback frame of an error."""
  if isinstance(error, SyntaxError) and error.filename:
    return f'{error.filename}:{error.lineno}'
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if not frame.filename.startswith('<')  # Python's own importer
  ]
  return f'{frames[-1].filename}:{frames[-1].lineno}'


def one_line(error: Exception) -> str:
  """Returns an error's type and the start of its message.

  An error without a message, such as an assertion, has its line of code.
  """
  text = ' '.join(str(error).split())
  if not text and error.__traceback__:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f'{frame.line} ({frame.filename}:{frame.lineno})'
  return f'{type(error).__name__}: {text[:300]}'


def with_location(error: Exception, *, brief: bool = False) -> str:
  """Returns an error's type, its message and its location.

  The location is in user code if that has part in the error. An error without a
  message has its line of code in addition.

  Args:
    error: it was raised.
    brief: whether the message is shortened as by `one_line`.
  """
  if str(error):
    text = one_line(error) if brief else f'{type(error).__name__}: {error}'
    return f'{text} ({best_location_of(error)})'
  text, place = one_line(error), location_in_user_code(error)
  if place is None or f'({place})' in text:
    return text
  return f'{text}, called from {place}'
