"""Runs the `main` of a program: flags, logging, errors and exit status."""

import contextlib
import functools
import logging as python_logging
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator

from absl import app, flags, logging

from pax_compat import errors

# A flag of JAX, or one of ours that has such a name.
_FLAG_OF_JAX = re.compile(r'--?(?:no)?(jax_\w+)(?:=.*)?', re.DOTALL)
# The name of the flag with modules that may define more flags.
IMPORT_MODULES = 'import_modules'
# Libraries that log every step, or every file of a remote folder.
_VERBOSE = (
  'flax',
  'fsspec',
  'gcsfs',
  'google',
  'jax',
  'lingvo',
  'orbax',
  'seqio',
  'tensorflow',
  'tensorflow_datasets',
)

# Arguments of the command line that are parsed after --import_modules.
_module_flags: list[str] = []


def run(
  main: Callable[[list[str]], int | None],
  define_flags: Callable[[], None] = lambda: None,
):
  """Parses the flags and exits with the status that `main` returns.

  A `UserError` or an invalid flag prints one error and exits with status 2. A
  closed pipe, as in `--list | head`, ends the program without an error.

  Args:
    main: takes the program's name and the arguments that are not flags; returns
      the exit status, None for 0.
    define_flags: defines flags that are not defined at import.
  """
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().addFilter(_is_for_users)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  program = sys.modules['__main__']  # Its docstring is shown by --help.
  if not program.__doc__ and main.__module__ in sys.modules:
    program.__doc__ = sys.modules[main.__module__].__doc__
  parse = functools.partial(_parse, define_flags)
  app.run(functools.partial(exit_on_user_error, main), flags_parser=parse)


def exit_on_user_error(main: Callable, argv: list[str]) -> int | None:
  """Runs `main`. A `UserError` is printed and exits with status 2."""
  try:
    with _ends_with_its_reader():
      return main(argv)
  except errors.UserError as e:
    location = errors.location_in_user_code(e)
    suffix = f'\n  at {location}' if location else ''
    print(f'error: {e}{suffix}', file=sys.stderr)
    sys.exit(2)


def no_arguments(argv: list[str]):
  """Raises a UserError if there are arguments that are not flags."""
  if len(argv) > 1:
    raise errors.UserError(
      f'{" ".join(argv[1:])}: expected flags only; see --help'
    )


def require(*required: flags.FlagHolder):
  """Raises a UserError if one of the flags does not have a value."""
  for flag in required:
    if not flag.value:
      raise errors.UserError(f'--{flag.name} is required; see --help')


def print_line(line: str):
  """Prints a line at once.

  If it cannot be written, as nobody reads the output, the terminal was closed
  or a disk is full, the program goes on without output.
  """
  try:
    print(line, flush=True)
  except OSError as e:
    _drop_output()
    is_closed = isinstance(e, BrokenPipeError)
    logging.warning(
      'the standard output %s; the run goes on, and its folder has the metrics',
      'is closed' if is_closed else f'cannot be written: {e.strerror}',
    )


@contextlib.contextmanager
def _ends_with_its_reader() -> Iterator[None]:
  """Within it, writing to a pipe that nobody reads ends the program."""
  try:
    try:
      yield
    finally:
      sys.stdout.flush()
  except BrokenPipeError:
    if not _is_closed(sys.stdout):
      raise  # It was another pipe.
    _drop_output()
    sys.exit(128 + signal.SIGPIPE)


def _is_closed(output) -> bool:
  """Whether a stream is a pipe that nobody reads any more."""
  poll = select.poll()
  poll.register(output.fileno(), select.POLLOUT)
  return any(event & select.POLLERR for _, event in poll.poll(0))


def _drop_output():
  """Drops all that is written to the standard output from now on."""
  nowhere = os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, sys.stdout.fileno())
  os.close(nowhere)


def _is_for_users(record) -> bool:
  """Drops the log lines of verbose libraries below level ERROR.

  Errors of Orbax are raised, too, and have one line then.
  """
  library = _verbose_library(record.pathname)
  return (
    library is None
    or record.levelno >= python_logging.ERROR
    and library != 'orbax'
  )


@functools.cache
def _verbose_library(path: str) -> str | None:
  """Returns the verbose library that a source file belongs to, if any.

  A library can be in any folder of `sys.path`: `site-packages`, Debian's
  `dist-packages`, a folder of `PYTHONPATH`.
  """
  for folder in filter(None, sys.path):
    prefix = os.path.join(folder, '')
    name = path.removeprefix(prefix).partition(os.sep)[0]
    if path.startswith(prefix) and name in _VERBOSE:
      return name
  return None


def _parse(define_flags: Callable[[], None], argv: list[str]) -> list[str]:
  """Parses the flags. An invalid flag prints one error and exits with 2."""
  try:
    define_flags()
    _define_flags_of_jax(argv)
    with _ends_with_its_reader():
      return _parsed(argv)
  except flags.Error as e:
    print(f'error: {e}', file=sys.stderr)
    sys.exit(2)
  except SystemExit as e:  # absl exits with 1 after --help.
    sys.exit(0 if e.code == 1 else e.code)


def module_flags() -> tuple[str, ...]:
  """Returns the arguments for flags that only `--import_modules` may define."""
  return tuple(_module_flags)


def _parsed(argv: list[str]) -> list[str]:
  """Parses the flags; those that modules may define are kept for later.

  Returns:
    The program's name and the arguments that are not flags.
  """
  _module_flags.clear()
  try:
    return flags.FLAGS(argv)
  except flags.UnrecognizedFlagError:
    given = flags.FLAGS
    for name in given:
      if given[name].present:  # Parsing again would repeat values of lists.
        given[name].unparse()
    program, *others = given(argv, known_only=True)
    if IMPORT_MODULES not in given or not given[IMPORT_MODULES].value:
      raise
  arguments = []
  takes_next = False
  for argument in others:
    is_flag = argument.startswith('-')
    (_module_flags if is_flag or takes_next else arguments).append(argument)
    takes_next = is_flag and '=' not in argument
  return [program, *arguments]


def _define_flags_of_jax(argv: list[str]):
  """Defines JAX's own flags, if one of them seems to be given.

  JAX takes a second to import, which other commands should not cost.
  """
  known = flags.FLAGS
  names = (_FLAG_OF_JAX.fullmatch(arg) for arg in argv)
  if any(found and found[1] not in known for found in names):
    import jax

    jax.config.config_with_absl()
