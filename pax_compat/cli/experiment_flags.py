"""The flags that find an experiment, for every program that takes `--exp`.

Those of the experiment sources are among them, once `define_of_sources` was
called: `command_line.run(main, experiment_flags.define_of_sources)`.
"""

import functools

from absl import flags

from pax_compat import errors, experiment_sources
from pax_compat.experiments import options as options_lib

EXP = flags.DEFINE_string('exp', None, 'Name of the experiment.')
flags.DEFINE_alias('model', 'exp')
_IMPORT_MODULES = flags.DEFINE_list(
  'import_modules',
  [],
  'Modules to import first; they register experiments.',
)
_SKIP_BAD_RECORDS = flags.DEFINE_bool(
  'skip_bad_records',
  False,
  'Leave out records of the data that are damaged, and count them, where they'
  ' would be errors.',
)


# A source that cannot be imported is reported once.
_option_kinds = functools.cache(experiment_sources.option_kinds)


def define_of_sources():
  """Defines the flags that the experiment sources declare."""
  for kind in _option_kinds():
    options_lib.define(kind)


def options() -> experiment_sources.SourceOptions:
  """Returns the options for finding an experiment that the flags give."""
  return experiment_sources.SourceOptions(
    import_modules=tuple(_IMPORT_MODULES.value),
    own=tuple(map(options_lib.from_flags, _option_kinds())),
  )


def skip_bad_records() -> bool:
  """Whether inputs leave out damaged records."""
  return _SKIP_BAD_RECORDS.value


def name() -> str:
  """Returns the name of the experiment.

  Without `--exp` it is the one that the options of a source imply.

  Raises:
    UserError: there is none.
  """
  implied = options().experiment_name()
  if not implied:
    require(EXP)
  return EXP.value or implied


def require(*required: flags.FlagHolder):
  """Raises a UserError unless each of the flags has a value."""
  for flag in required:
    if not flag.value:
      raise errors.UserError(
        f'--{flag.name} is required; --help lists the flags, and'
        ' python -m pax_compat.main --list the experiments'
      )


def no_arguments(argv: list[str]):
  """Raises a UserError if there is more than flags on a command line."""
  if len(argv) > 1:
    raise errors.UserError(
      f'{" ".join(argv[1:])}: expected flags only; see --help'
    )
