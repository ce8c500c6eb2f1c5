"""Flags that select an experiment, for every program that takes `--exp`.

`define_of_sources` adds the flags of the experiment sources:
`command_line.run(main, experiment_flags.define_of_sources)`.
"""

import functools

from absl import flags

from pax_compat import errors, experiment_sources
from pax_compat.cli import command_line
from pax_compat.experiments import options as options_lib

EXP = flags.DEFINE_string('exp', None, 'Name of the experiment.')
flags.DEFINE_alias('model', 'exp')
_IMPORT_MODULES = flags.DEFINE_list(
  command_line.IMPORT_MODULES,
  [],
  'Modules that register experiments, to import first. absl flags that they'
  ' define may be given, too.',
)
_SKIP_BAD_RECORDS = flags.DEFINE_bool(
  'skip_bad_records',
  False,
  'Skip and count damaged records of the data. By default they are errors.',
)
_ATTR = flags.DEFINE_multi_string(
  'attr',
  [],
  'Set a class attribute of the experiment: --attr=MODEL_DIMS=64. May be'
  ' repeated.',
)

_SUB_EXPERIMENT = flags.DEFINE_string(
  'sub_experiment',
  None,
  "Name of one of the experiment's sub_experiments(), which is used in its"
  ' place.',
)

# Cached, so that a source that cannot be imported is reported once.
_option_kinds = functools.cache(experiment_sources.option_kinds)


def define_of_sources():
  """Defines the flags that the experiment sources declare."""
  for kind in _option_kinds():
    options_lib.define(kind)


def options() -> experiment_sources.SourceOptions:
  """Returns the options for finding an experiment, from the flags."""
  return experiment_sources.SourceOptions(
    import_modules=tuple(_IMPORT_MODULES.value),
    attributes=tuple(_ATTR.value),
    own=tuple(map(options_lib.from_flags, _option_kinds())),
    sub_experiment=_SUB_EXPERIMENT.value,
    module_flags=command_line.module_flags(),
  )


def skip_bad_records() -> bool:
  """Whether inputs skip damaged records."""
  return _SKIP_BAD_RECORDS.value


def name() -> str:
  """Returns the name of the experiment.

  Without `--exp`, the options of a source may imply it.

  Raises:
    UserError: the name is missing.
  """
  implied = options().experiment_name()
  if not implied:
    require(EXP)
  return EXP.value or implied


def require(*required: flags.FlagHolder):
  """Raises a UserError if one of the flags does not have a value."""
  for flag in required:
    if not flag.value:
      raise errors.UserError(
        f'--{flag.name} is required; --help lists the flags, and'
        ' python -m pax_compat.main --list the experiments'
      )
