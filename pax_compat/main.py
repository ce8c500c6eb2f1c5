"""Trains an experiment: `python -m pax_compat.main --exp=NAME --job_log_dir=X`.

Only what a command needs is imported: `--help` and mistakes in the flags are
answered before JAX is.
"""

import fnmatch
import logging as python_logging
import os
import sys

from absl import app, flags, logging

from pax_compat import errors, experiment_overrides, experiment_sources

FLAGS = flags.FLAGS

_EXP = flags.DEFINE_string('exp', None, 'Name of the experiment.')
_JOB_LOG_DIR = flags.DEFINE_string(
  'job_log_dir',
  None,
  'Folder of the run: checkpoints, summaries, metrics, configs. If it holds a'
  ' run of the same experiment, that run continues.',
)
flags.DEFINE_alias('model', 'exp')
flags.DEFINE_alias('logdir', 'job_log_dir')
_LIST = flags.DEFINE_bool(
  'list',
  False,
  'Print the names of all known experiments, or of those that match the'
  ' patterns given as arguments, such as --list "lm.*".',
)
_LINGVO = flags.DEFINE_bool(
  'lingvo',
  False,
  'With --list: import what registers Lingvo experiments, instead of reading'
  ' its source text only.',
)
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
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'Sets a field of a config, as config.txt of a run writes it:'
  ' --set=task.train.learner.optimizer.learning_rate=1e-3. May be repeated. Of'
  ' a Lingvo experiment it changes what the Params were translated to.',
)


def _options() -> experiment_sources.SourceOptions:
  return experiment_sources.SourceOptions(
    import_modules=tuple(_IMPORT_MODULES.value),
    lingvo_source=_LINGVO_SOURCE.value,
    translation=_TRANSLATION.value,
    model_params_override=_OVERRIDE.value,
    load_everything=_LINGVO.value,
  )


def _list_names(patterns: list[str]):
  known = experiment_sources.names(_options())
  chosen = {
    name: line
    for name, line in known.items()
    if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)
  }
  if not chosen:
    raise errors.UserError(
      f'no experiment matches {" ".join(patterns)}'
      + errors.did_you_mean(patterns[0], known)
      if patterns
      else 'no experiment is known'
    )
  width = max(map(len, chosen))
  for name, line in chosen.items():
    print(f'{name.ljust(width)}  {line}'.rstrip())


def _train():
  for flag in (_EXP, _JOB_LOG_DIR):
    if not flag.value:
      raise errors.UserError(
        f'--{flag.name} is required; --help lists the flags, --list the'
        ' experiments'
      )
  experiment = experiment_sources.find(_EXP.value, _options())
  experiment_overrides.override(experiment, _SET.value)
  # JAX, flax and Orbax take seconds to import, which a mistake in a name
  # should not cost.
  from pax_compat.trainer import run as trainer

  try:
    trainer.train(
      experiment, name=_EXP.value, job_log_dir=_JOB_LOG_DIR.value, say=_say
    )
  except trainer.Stopped as e:
    _say(f'{e}; the same command continues')
    sys.exit(128 + e.signal_number)


def _say(line: str):
  print(line, flush=True)


def main(argv: list[str]):
  """Does what the flags say.

  Returns normally when it is done; a mistake ends the process with status 2.
  """
  try:
    if _LIST.value:
      _list_names(argv[1:])
    elif len(argv) > 1:
      raise errors.UserError(
        f'{" ".join(argv[1:])}: expected flags only; see --help'
      )
    else:
      _train()
  except errors.UserError as e:
    place = errors.place_in_users_code(e)
    print(f'error: {e}' + (f'\n  at {place}' if place else ''), file=sys.stderr)
    sys.exit(2)


def run():
  """Entry point of the console script."""
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().addFilter(_is_for_the_user)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  app.run(main, flags_parser=_parse)


# Libraries whose every step is a line of the log.
_TALKATIVE = ('flax', 'jax', 'lingvo', 'orbax', 'tensorflow')


def _is_for_the_user(record) -> bool:
  """Keeps lines of libraries below an error from hiding ours."""
  library = f'{os.sep}site-packages{os.sep}'
  _, found, path = record.pathname.rpartition(library)
  return (
    not found
    or path.partition(os.sep)[0] not in _TALKATIVE
    or record.levelno >= python_logging.ERROR
  )


def _parse(argv: list[str]) -> list[str]:
  """Parses the flags; a wrong one is a mistake like any other."""
  try:
    return FLAGS(argv)
  except flags.Error as e:
    print(f'error: {e}', file=sys.stderr)
    sys.exit(2)
  except SystemExit:  # absl ends --help as if it were a mistake.
    sys.exit(0)


if __name__ == '__main__':
  run()
