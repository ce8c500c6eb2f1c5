"""Trains an experiment: `python -m pax_compat.main --exp=NAME --job_log_dir=X`.

With `--mode` it evaluates or decodes the checkpoints of such a run, or infers.
`python -m pax_compat.main --list` prints the names of all experiments, and
`--exp=NAME --check` the size of one, without data and weights.
"""

from pax_compat.cli import huge_pages

if __name__ == '__main__':
  huge_pages.start_again_with()  # Before the imports, which it would repeat.

import dataclasses
import fnmatch
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags, logging

from pax_compat import base_experiment, errors, experiment_sources
from pax_compat.cli import (
  command_line,
  completion,
  experiment_flags,
  guard_flags,
  job_flags,
  pax_flags,
  process_flags,
  recorded_options,
  run_flags,
  terminal,
  tune_flags,
)
from pax_compat.experiments import experiment_overrides, resolved
from pax_compat.runs import garbage, job_dir, run_log, versions
from pax_compat.tuning import processes

for _module in (
  experiment_flags,
  job_flags,
  process_flags,
  run_flags,
  guard_flags,
  pax_flags,
  tune_flags,
):
  flags.adopt_module_key_flags(_module)

_LIST = flags.DEFINE_bool(
  'list',
  False,
  'Print the names of all experiments, or of those that match the patterns'
  ' given as arguments, such as --list "lm.*".',
)
_VERSION = flags.DEFINE_bool(
  'version', False, 'Print the versions of this package and its libraries.'
)
_COMPLETION = flags.DEFINE_enum(
  'completion',
  None,
  completion.SHELLS,
  'Print a script that completes flags and names of experiments in a shell:'
  ' source <(pax-compat --completion=bash).',
)
_QUIET = flags.DEFINE_bool(
  'quiet',
  False,
  "Print warnings and errors only. log.txt in the run's folder has the rest.",
)
_CHECK = flags.DEFINE_bool(
  'check',
  False,
  'Print parameters, bytes per device, mesh, batch and FLOPs of an experiment,'
  ' without data, weights and the devices of its mesh.',
)
_COMPILE_ONLY = flags.DEFINE_bool(
  'compile_only',
  False,
  'Compile the train step for the TPUs of --topology, which need not be there,'
  ' and print its memory, its collectives and a bound of its time.',
)
_TOPOLOGY = flags.DEFINE_string(
  'topology',
  None,
  'Kind of TPU and chips of a slice, for --compile_only: v4:2x2x1 or v5e:4x4.',
)
_NUM_SLICES = flags.DEFINE_integer(
  'num_slices', 1, 'Number of slices of --topology.', lower_bound=1
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
      else 'no experiment was found'
    )
  width = max(map(len, chosen))
  for name, line in chosen.items():
    print(f'{name.ljust(width)}  {line}'.rstrip())


def _flag_names() -> list[str]:
  """Returns the names of all flags but those of absl."""
  return [
    flag.name
    for module, defined in flags.FLAGS.flags_by_module_dict().items()
    if not module.startswith('absl')
    for flag in defined
  ]


def _settings() -> list[str]:
  """Returns the settings `path=value` of all flags that have some."""
  settings = [*job_flags.SET.value, *pax_flags.settings()]
  experiment_overrides.check(settings)
  return settings


def _check_actions():
  """Raises a UserError for a flag of another action than the chosen one."""
  if _CHECK.value and _COMPILE_ONLY.value:
    raise errors.UserError(
      '--check and --compile_only are given; expected one of them'
    )
  for flag in (_TOPOLOGY, _NUM_SLICES):
    if flag.present and not _COMPILE_ONLY.value:
      raise errors.UserError(
        f'--{flag.name} is for --compile_only; expected both, or neither'
      )


def _run():
  """Trains, or runs the job that `--mode` selects."""
  processes.end_with_study()
  name = experiment_flags.name()
  experiment_flags.require(job_flags.JOB_LOG_DIR)
  job_dir.checked_path(job_flags.JOB_LOG_DIR.value)
  with garbage.uncollected(stays=True):
    make_experiment = _experiment(trains=pax_flags.mode() == pax_flags.TRAIN)
    job_dir.answering_path(job_flags.JOB_LOG_DIR.value)
    # Imported late, because JAX, flax and Orbax take seconds: invalid flags and
    # unknown names are reported at once.
    from pax_compat.processes import clusters, rendezvous

  run_flags.configure_jax()
  process_flags.join(clusters.detect, rendezvous.meet)
  run_flags.start_services()
  if huge_pages.described():
    logging.debug('huge pages are requested: %s', huge_pages.described())
  for note in () if _QUIET.value else pax_flags.notes():
    command_line.print_line(note)
  with garbage.uncollected(stays=True):
    from pax_compat.jobs import job, job_options
    from pax_compat.processes import process_failures, same_start
    from pax_compat.trainer import loop, run, run_options
  try:
    with (
      run_log.RunLog() as log,
      terminal.used(quiet=_QUIET.value) as screen,
      process_failures.shared(name, but=loop.Stopped, record=log.print_line),
    ):
      # After joining, because experiments may use the number of devices.
      experiment = make_experiment()
      experiment = dataclasses.replace(
        experiment, dumps={**experiment.dumps, **_record()}
      )
      same_start.check(
        flag_values=process_flags.common_flags(), experiment=experiment
      )
      common = dict(
        job_log_dir=job_flags.JOB_LOG_DIR.value,
        options=_run_options(run_options.RunOptions),
        print_line=functools.partial(_progress_line, screen),
        log=log,
      )
      if pax_flags.mode() == pax_flags.TRAIN:
        run.train(experiment, **common)
      else:
        chosen = run_flags.job_options(job_options.JobOptions)
        job.run(experiment, job=chosen, **common)
  except loop.Stopped as e:
    command_line.print_line(str(e))
    sys.exit(128 + e.signal_number)


def _run_options(kind: type) -> Any:
  """Returns the options of a run, which may be a trial of a study."""
  options = run_flags.options(kind)
  study = tune_flags.trial_of()
  if not study:
    return options
  from pax_compat.tuning import stopping_rules  # Imported late, as the rest.

  return dataclasses.replace(
    options, early_stopping=stopping_rules.in_trial(study)
  )


def _tune():
  """Runs a study: trials of an experiment, each of which is a run."""
  name = experiment_flags.name()
  experiment_flags.require(job_flags.JOB_LOG_DIR)
  settings = _settings()
  given = experiment_flags.options()

  def find(attributes: Sequence[str]) -> base_experiment.BaseExperiment:
    more = (*given.attributes, *attributes)
    return experiment_sources.find(
      name, dataclasses.replace(given, attributes=more)
    )

  find(())  # An unknown name is reported at once.
  # Imported late, as for training.
  from pax_compat.tuning import planning, records, study

  options = tune_flags.options(
    planning.Options, records.Stopping, records.Evolution
  )
  plan = planning.plan(
    find, dataclasses.replace(options, settings=tuple(settings))
  )
  try:
    study.run(
      plan,
      job_log_dir=job_flags.JOB_LOG_DIR.value,
      print_line=command_line.print_line,
    )
  except study.Stopped as e:
    command_line.print_line(str(e))
    sys.exit(128 + e.signal_number)


def _check():
  """Prints the size of an experiment."""
  experiment = _experiment()
  # Imported late, as for training.
  from pax_compat.tools import experiment_check

  lines = experiment_check.check(experiment, peak=run_flags.peak_flops())
  print(lines, flush=True)


def _compile_only():
  """Prints what the compiled train step of an experiment needs."""
  experiment_flags.name()
  experiment_flags.require(_TOPOLOGY)
  experiment = _experiment()
  # Imported late, as for training.
  from pax_compat.tools.pods import compiling

  compiled = compiling.compile_only(
    experiment, _TOPOLOGY.value, _NUM_SLICES.value
  )
  print(compiled.text(), flush=True)


def _experiment(
  *, trains: bool = False
) -> Callable[[], resolved.ResolvedExperiment]:
  """Finds the experiment that the flags select.

  Args:
    trains: see `resolved.resolve`.

  Returns:
    A function that resolves it, which may make its inputs and needs JAX.

  Raises:
    UserError: the experiment is unknown, or a setting is not valid.
  """
  name = experiment_flags.name()
  settings = _settings()
  options = experiment_flags.options()
  experiment = experiment_sources.find(name, options)

  def resolve() -> resolved.ResolvedExperiment:
    return run_flags.of_experiment(
      resolved.resolve(
        experiment,
        name=name,
        settings=settings,
        changed_attributes=options.attributes,
        skip_bad_records=experiment_flags.skip_bad_records(),
        trains=trains,
      )
    )

  return resolve


def _progress_line(screen: terminal.Terminal, line: str):
  """Prints a line in the first process; the others log it for debugging."""
  import jax  # Imported late, as for training.

  if jax.process_index() == 0:
    screen.print_line(line)
  else:
    logging.debug('%s', line)


def _print_versions():
  print(f'{versions.NAME} {versions.of_package()}')
  for name, version in versions.of_libraries().items():
    print(f'  {name} {version}')


def _record() -> dict[str, str]:
  """Returns the file that has what selected the experiment."""
  record = recorded_options.Recorded(
    name=experiment_flags.name(),
    options=experiment_flags.options(),
    settings=tuple(_settings()),
    skip_bad_records=experiment_flags.skip_bad_records(),
  )
  return {recorded_options.FILE: record.to_json()}


def main(argv: list[str]):
  """Runs the command that the flags select.

  Args:
    argv: the program's name, and arguments that are not flags.
  """
  if _VERSION.value:
    _print_versions()
    return
  if _LIST.value:
    _list_names(argv[1:])
    return
  if _COMPLETION.value:
    print(completion.script(_COMPLETION.value, _flag_names()), end='')
    return
  command_line.no_arguments(argv)
  _check_actions()
  is_study = tune_flags.is_study()
  for checked in (pax_flags, process_flags, run_flags):
    checked.check()
  if is_study:
    tune_flags.check()
  if _CHECK.value:
    _check()
  elif _COMPILE_ONLY.value:
    _compile_only()
  elif is_study:
    _tune()
  else:
    _run()


def run():
  """Entry point of the console script."""
  huge_pages.start_again_with()  # `python -m` has done so already.
  command_line.run(main, experiment_flags.define_of_sources)


if __name__ == '__main__':
  run()
