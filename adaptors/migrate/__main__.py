"""Reports which Lingvo experiments run here, how, and what is unsupported.

    python -m adaptors.migrate --exp='lm.*,mt.*' --html=report.html
    python -m adaptors.migrate --all --import_modules=my_team.params
    python -m adaptors.migrate --all --run_steps=5

For each experiment the report has: whether it is translated to JAX (native),
run by TensorFlow inside of JAX (bridged), partly bridged, or impossible; the
layers, with the reasons and what would make each native; the number of
parameters and the memory of training; the adaptors of its inputs; the
translated program schedule; whether its checkpoints can be imported; and
whether a step of training and of an evaluation can be traced. The decisions are
those of the run. No weights are allocated, and data is read only for a batch to
trace with, if the input's fields are unknown without.

With --run_steps, every experiment that runs is trained for some steps and
evaluated, reduced, on synthetic batches.

Exits with 0 if all experiments run; with 1 if one is impossible, or does not
run as the report says; with 2 if a flag is invalid.
"""

import dataclasses
import json
import pathlib
import shutil

from absl import flags, logging

from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors
from pax_compat.cli import command_line, experiment_flags

flags.adopt_module_key_flags(experiment_flags)

_ALL = flags.DEFINE_bool(
  'all', False, 'Report on every experiment of the registry; else on --exp.'
)
_HTML = flags.DEFINE_string(
  'html', None, 'File to write the report to as a self-contained page.'
)
_JSON = flags.DEFINE_string(
  'json', None, 'File to write the report to as JSON.'
)
_TRACE = flags.DEFINE_bool(
  'trace',
  True,
  'Trace a step of training and of an evaluation of each task, which finds ops'
  ' that XLA cannot compile. Uses a synthetic batch if the fields of batches'
  ' are known, else a batch of the input. Without it an experiment is listed as'
  ' not traced, and may fail when it runs.',
)
_RUN_STEPS = flags.DEFINE_integer(
  'run_steps',
  0,
  'Also train each experiment that runs for this many steps, and evaluate it'
  ' once: reduced, on synthetic batches, in a process of its own. Prints'
  ' whether each ran as the report says.',
  lower_bound=0,
)
_RUN_TIMEOUT = flags.DEFINE_float(
  'run_timeout_seconds',
  900,
  'The time limit of each of these runs.',
  lower_bound=1,
)


def main(argv: list[str]) -> int:
  """Writes the report; returns the exit status."""
  command_line.no_arguments(argv)
  options = experiment_flags.options()
  own = options.of(LingvoOptions)
  _check_flags(own)
  # JAX and TensorFlow take seconds to import; a wrong name is reported before.
  from adaptors.migrate import choosing

  if _ALL.value:
    names = choosing.everything(options)
  elif experiment_flags.EXP.value:
    names = choosing.matching(experiment_flags.EXP.value, options)
  else:
    names = [own.lingvo_logdir]
  return _report(names, options)


def _check_flags(options):
  """Raises a UserError over incompatible flags."""
  if options.translation != 'auto':
    raise errors.UserError(
      f'--translation={options.translation} has no meaning for a report'
      ' on every translation; expected it without'
    )
  asked = [
    f'--{name}'
    for name, value in (
      ('all', _ALL.value),
      ('exp', experiment_flags.EXP.value),
      ('lingvo_logdir', options.lingvo_logdir),
    )
    if value
  ]
  if len(asked) != 1:
    raise errors.UserError(
      f'got {" and ".join(asked) or "no experiments"}; expected one of --all,'
      ' --exp and --lingvo_logdir'
    )
  for flag in (_HTML, _JSON):
    folder = pathlib.Path(flag.value or '.').expanduser().parent
    if not folder.is_dir():
      raise errors.UserError(
        f'--{flag.name}: the folder {folder} does not exist'
      )


def _report(names, options) -> int:
  from adaptors.migrate.examine import examining
  from adaptors.migrate.findings import Status
  from adaptors.migrate.report import page, terminal

  logging.set_verbosity(logging.WARNING)
  found = []
  for number, name in enumerate(names, 1):
    found.append(examining.examine(name, options, traces=_TRACE.value))
    if _RUN_STEPS.value and found[-1].status is not Status.IMPOSSIBLE:
      found[-1] = _tried(found[-1], options)
    _write_json(found)  # An interrupted report leaves what it has found.
    if len(names) > 1:
      print(f'{number}/{len(names)} {_brief(found[-1])}', flush=True)
  width = shutil.get_terminal_size((160, 24)).columns
  if len(found) == 1:
    print(terminal.details(found[0]))
  else:
    print(terminal.table(found, width))
    if _RUN_STEPS.value:
      print(f'\n{terminal.trials(found, width)}')
  if _HTML.value:
    path = pathlib.Path(_HTML.value).expanduser()
    path.write_text(page.page(found), 'utf-8')
    print(f'written: {_HTML.value}')
  if _JSON.value:
    print(f'written: {_JSON.value}')
  fails = any(e.status is Status.IMPOSSIBLE or e.agrees is False for e in found)
  return 1 if fails else 0


def _brief(experiment) -> str:
  """Returns the progress line of an experiment."""
  text = f'{experiment.name}: {experiment.status}'
  if experiment.trial is None:
    return text
  return f'{text}, trial {"FAILED" if experiment.trial.problem else "ran"}'


def _tried(experiment, options):
  """Returns the findings with those of a trial run."""
  from adaptors.migrate.trial import trials

  trial = trials.run(
    experiment.name,
    options,
    steps=_RUN_STEPS.value,
    timeout_seconds=_RUN_TIMEOUT.value,
  )
  return dataclasses.replace(experiment, trial=trial)


def _write_json(found):
  if _JSON.value:
    data = [one.as_dict() for one in found]
    path = pathlib.Path(_JSON.value).expanduser()
    path.write_text(json.dumps(data, indent=2) + '\n', 'utf-8')


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
