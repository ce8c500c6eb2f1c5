"""The error type for invalid input of a user, and suggestions of names."""

import contextlib
import difflib
import functools
import importlib.util
import pathlib
import pkgutil
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence

# Letters of a name that is similar to those that contain it.
_LEAST_CONTAINED = 3
# So many names are all named, if none is similar.
_FEW = 10


class UserError(Exception):
  """A name, flag, field, file or checkpoint that cannot be used as given.

  The message states what is wrong, where, what was expected and the nearest
  valid choice, in a few lines. `pax_compat.main` prints it without a traceback
  and exits with status 2.
  """


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
  """Returns at most `count` known names that are similar to `name`.

  Similar are those with a small difference, those that contain `name` or are
  contained in it, such as the name without its package, and those that begin
  much like it.

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
  near += [other for other in originals if _contains(other, name)]
  beginnings = {other: other[: len(name)] for other in originals}
  begins = difflib.get_close_matches(name, {*beginnings.values()}, count, 0.8)
  if len(name) >= _LEAST_CONTAINED:
    near += [o for b in begins for o in originals if beginnings[o] == b]
  near = dict.fromkeys(near)
  return [other for lower in near for other in originals[lower]][:count]


def _contains(one: str, other: str) -> bool:
  """Whether one of two names contains the other, unless that is too short."""
  shorter, longer = sorted((one, other), key=len)
  return shorter in longer and len(shorter) >= _LEAST_CONTAINED


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
  """Returns `; did you mean: a, b, c?`.

  If no name is similar, a few known ones are all named: `; expected one of: a,
  b`; for many, or none, the string is empty.
  """
  known = sorted({*known})
  if near := near_names(name, known, count):
    return f'; did you mean: {", ".join(near)}?'
  if not known or len(known) > _FEW:
    return ''
  one_of = 'one of: ' if len(known) > 1 else ''
  return f'; expected {one_of}{", ".join(known)}'


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
  package, _, last = missing.rpartition('.')
  text = f'module {name} not found'
  if missing != name:
    text += f': {missing} is missing'
  return text + did_you_mean(last, _modules_in(package))


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


def location_of(error: Exception, own_file: str | None = None) -> str:
  """Returns `file:line` of the innermost traceback frame of an error.

  Args:
    error: the error.
    own_file: a file whose innermost frame is preferred, if it has one.
  """
  if isinstance(error, SyntaxError) and error.filename:
    return f'{error.filename}:{error.lineno}'
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if not frame.filename.startswith('<')  # Python's own importer
  ]
  own = [frame for frame in frames if frame.filename == own_file]
  frame = (own or frames)[-1]
  return f'{frame.filename}:{frame.lineno}'


def one_line(error: Exception) -> str:
  """Returns an error's type and the start of its message.

  An error without a message, such as an assertion, has its line of code.
  """
  text = ' '.join(str(error).split())
  if not text and error.__traceback__:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f'{frame.line} ({frame.filename}:{frame.lineno})'
  return f'{type(error).__name__}: {text[:300]}'
