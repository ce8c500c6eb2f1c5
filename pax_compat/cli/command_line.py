"""How programs start, answer mistakes and end."""

import functools
import logging as python_logging
import os
import sys
from collections.abc import Callable

from absl import app, flags, logging

from pax_compat import errors

# Libraries whose every step is a line of the log.
_TALKATIVE = ('flax', 'jax', 'lingvo', 'orbax', 'tensorflow')


def run(
  main: Callable[[list[str]], int | None],
  define_flags: Callable[[], None] = lambda: None,
):
  """Parses the flags and ends the process with what `main` returns.

  A mistake of the user's ends it with status 2 and no traceback.

  Args:
    main: takes the program's name and the arguments that are no flags; returns
      the exit status, None for 0.
    define_flags: defines flags that are not known when the program is imported.
  """
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().addFilter(_is_for_the_user)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  parse = functools.partial(_parse, define_flags)
  app.run(functools.partial(answering_mistakes, main), flags_parser=parse)


def answering_mistakes(main: Callable, argv: list[str]) -> int | None:
  """Returns what `main` returns; a mistake ends the process with status 2."""
  try:
    return main(argv)
  except errors.UserError as e:
    place = errors.place_in_users_code(e)
    print(f'error: {e}' + (f'\n  at {place}' if place else ''), file=sys.stderr)
    sys.exit(2)


def _is_for_the_user(record) -> bool:
  """Keeps lines of libraries below an error from hiding ours."""
  library = f'{os.sep}site-packages{os.sep}'
  _, found, path = record.pathname.rpartition(library)
  return (
    not found
    or path.partition(os.sep)[0] not in _TALKATIVE
    or record.levelno >= python_logging.ERROR
  )


def _parse(define_flags: Callable[[], None], argv: list[str]) -> list[str]:
  """Parses the flags; a wrong one is a mistake like any other."""
  try:
    define_flags()
    return flags.FLAGS(argv)
  except flags.Error as e:
    print(f'error: {e}', file=sys.stderr)
    sys.exit(2)
  except SystemExit:  # absl ends --help as if it were a mistake.
    sys.exit(0)
