"""Trains an experiment: `python -m pax_compat.main --exp=NAME --job_log_dir=X`.

Only what a command needs is imported: `--help` and mistakes in the flags are
answered before JAX is.
"""

import fnmatch
import functools
import sys

from absl import flags, logging

from pax_compat import errors, experiment_sources
from pax_compat.cli import (
  command_line,
  experiment_flags,
  huge_pages,
  process_flags,
)
from pax_compat.experiments import experiment_overrides, resolved

flags.adopt_module_key_flags(experiment_flags)
flags.adopt_module_key_flags(process_flags)

_JOB_LOG_DIR = flags.DEFINE_string(
  'job_log_dir',
  None,
  'Folder of the run: checkpoints, summaries, metrics, configs. If it holds a'
  ' run of the same experiment, that run continues.',
)
flags.DEFINE_alias('logdir', 'job_log_dir')
_LIST = flags.DEFINE_bool(
  'list',
  False,
  'Print the names of all known experiments, or of those that match the'
  ' patterns given as arguments, such as --list "lm.*".',
)
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'Sets a field of a config, as config.txt of a run writes it:'
  ' --set=task.train.learner.optimizer.learning_rate=1e-3. May be repeated.'
  ' Of an experiment of another framework it changes the translation.',
)


def _list_names(patterns: list[str]):
  known = experiment_sources.names(experiment_flags.options())
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


def _train(may_start_again: bool):
  name = experiment_flags.name()
  experiment_flags.require(_JOB_LOG_DIR)
  process_flags.check()
  experiment_overrides.check(_SET.value)
  if may_start_again:
    huge_pages.start_again_with()
  experiment = experiment_sources.find(name, experiment_flags.options())
  process_flags.join()
  if huge_pages.described():
    logging.debug('huge pages are asked for: %s', huge_pages.described())
  # JAX, flax and Orbax take seconds to import, which a mistake in a name
  # should not cost.
  from pax_compat.processes import process_failures
  from pax_compat.trainer import run as trainer

  try:
    with process_failures.shared(name, but=trainer.Stopped):
      # Only now, since an experiment may ask for the number of devices.
      experiment = resolved.resolve(
        experiment,
        name=name,
        settings=_SET.value,
        skip_bad_records=experiment_flags.skip_bad_records(),
      )
      trainer.train(experiment, job_log_dir=_JOB_LOG_DIR.value, say=_say)
  except trainer.Stopped as e:
    _say(f'{e}; the same command continues')
    sys.exit(128 + e.signal_number)


def _say(line: str):
  print(line, flush=True)


def main(argv: list[str], *, may_start_again: bool = False):
  """Does what the flags say.

  Args:
    argv: the program's name, and arguments that are no flags.
    may_start_again: whether this process may be replaced by another one of the
      same command and number, which has what it takes to be fast.
  """
  if _LIST.value:
    _list_names(argv[1:])
  else:
    experiment_flags.no_arguments(argv)
    _train(may_start_again)


def run():
  """Entry point of the console script."""
  command_line.run(
    functools.partial(main, may_start_again=True),
    experiment_flags.define_of_sources,
  )


if __name__ == '__main__':
  run()
