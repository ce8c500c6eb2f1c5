"""The flags that find an experiment, for every program that takes `--exp`."""

from absl import flags

from pax_compat import errors, experiment_sources

EXP = flags.DEFINE_string('exp', None, 'Name of the experiment.')
flags.DEFINE_alias('model', 'exp')
_IMPORT_MODULES = flags.DEFINE_list(
  'import_modules',
  [],
  'Modules to import first; they register experiments.',
)
_LINGVO_SOURCE = flags.DEFINE_string(
  'lingvo_source',
  None,
  "A checkout of Lingvo's source, whose params packages are added to what is"
  ' installed.',
)
_TRANSLATION = flags.DEFINE_enum(
  'translation',
  'auto',
  ['auto', 'native', 'bridge'],
  'How a Lingvo model is run: translated to JAX (native), in TensorFlow under'
  ' JAX (bridge), or native where possible (auto).',
)
_OVERRIDE = flags.DEFINE_string(
  'model_params_override',
  '',
  "Changes of a Lingvo model's Params: `path : value` pairs, separated by ; or"
  ' new lines.',
)
_LINGVO_INPUT_REPLAY = flags.DEFINE_bool(
  'lingvo_input_replay',
  False,
  'Read the training data of a Lingvo experiment in an order that can be'
  ' repeated, so that a run goes on exactly where it stopped, also with another'
  ' number of processes: one reader thread, files in order, no shuffling.',
)
_SKIP_BAD_RECORDS = flags.DEFINE_bool(
  'skip_bad_records',
  False,
  'Leave out records of the data that are damaged, and count them, where they'
  ' would be errors.',
)
_LINGVO_LOGDIR = flags.DEFINE_string(
  'lingvo_logdir',
  None,
  "Folder of a run of Lingvo's trainer to go on with: from its newest"
  ' checkpoint, and, without --exp, with the experiment that its Params say.'
  ' With --exp the prefix of a checkpoint too.',
)
_ALLOW_MISSING = flags.DEFINE_multi_string(
  'allow_missing',
  [],
  'Regular expression of tensors that a Lingvo checkpoint may lack; what they'
  ' would have been starts anew.',
)
_ALLOW_UNUSED = flags.DEFINE_multi_string(
  'allow_unused',
  [],
  'Regular expression of tensors of a Lingvo checkpoint that may be left over.',
)


def options(load_everything: bool = False) -> experiment_sources.SourceOptions:
  """Returns what the flags say about finding an experiment.

  Args:
    load_everything: whether a listing may import what is slow to import.
  """
  return experiment_sources.SourceOptions(
    import_modules=tuple(_IMPORT_MODULES.value),
    lingvo_source=_LINGVO_SOURCE.value,
    translation=_TRANSLATION.value,
    model_params_override=_OVERRIDE.value,
    lingvo_input_replay=_LINGVO_INPUT_REPLAY.value,
    skip_bad_records=_SKIP_BAD_RECORDS.value,
    lingvo_logdir=_LINGVO_LOGDIR.value,
    allow_missing=tuple(_ALLOW_MISSING.value),
    allow_unused=tuple(_ALLOW_UNUSED.value),
    load_everything=load_everything,
  )


def name() -> str:
  """Returns the experiment's name; the folder of a Lingvo run stands for it.

  Raises:
    UserError: there is neither.
  """
  if not _LINGVO_LOGDIR.value:
    require(EXP)
  return EXP.value or _LINGVO_LOGDIR.value


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
