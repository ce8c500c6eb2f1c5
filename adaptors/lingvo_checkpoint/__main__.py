"""Converts checkpoints between Lingvo's trainer and this one.

    python -m adaptors.lingvo_checkpoint convert --exp=NAME \
        --lingvo_logdir=/old/run --job_log_dir=/new/run [--verify]
    python -m adaptors.lingvo_checkpoint convert --exp=NAME \
        --job_log_dir=/new/run --to_lingvo=/back/train [--verify]

With `--lingvo_logdir` and a new `--job_log_dir`, the second command converts
the checkpoint of that run of Lingvo to the job first, and then back.

An interrupted conversion resumes if it is started again. Padding rows of
Lingvo's tables do not exist here; the conversion to Lingvo takes them from
`--lingvo_logdir` if that is given, else they are 0. `--verify` reads the result
and compares it with its source, bit by bit, 64-bit types by their values; the
command `verify` does only that, for an existing run and Lingvo checkpoint.
Without `--exp` the experiment is that of the Params in `--lingvo_logdir`.
"""

from absl import flags

from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources
from pax_compat.cli import command_line, experiment_flags
from pax_compat.experiments import experiment_overrides

flags.adopt_module_key_flags(experiment_flags)

_JOB_LOG_DIR = flags.DEFINE_string(
  'job_log_dir', None, 'Folder of the run of pax_compat.main.'
)
_TO_LINGVO = flags.DEFINE_string(
  'to_lingvo',
  None,
  "Folder to write Lingvo's checkpoint to, such as the `train` of a new run.",
)
_VERIFY = flags.DEFINE_bool(
  'verify', False, 'Compare the result with its source, bit by bit.'
)
_COMMANDS = ('convert', 'verify')


def main(argv: list[str]):
  """Runs the command."""
  if len(argv) != 2 or argv[1] not in _COMMANDS:
    raise errors.UserError(
      f'{" ".join(argv[1:]) or "no command"}: expected one of'
      f' {", ".join(_COMMANDS)}'
    )
  name = experiment_flags.name()
  options = experiment_flags.options()
  logdir = options.of(LingvoOptions).lingvo_logdir
  if logdir and _TO_LINGVO.value and not _JOB_LOG_DIR.value:
    raise errors.UserError(
      '--job_log_dir is required: a checkpoint of Lingvo is converted to a run'
      ' of pax_compat.main, and from there back to Lingvo; expected'
      ' --job_log_dir with a new folder, or that of the run to convert'
    )
  experiment_flags.require(_JOB_LOG_DIR)
  lingvos = _TO_LINGVO.value or logdir
  if not lingvos:
    raise errors.UserError(
      'expected --lingvo_logdir, to convert from Lingvo, or --to_lingvo, to'
      ' convert to it'
    )
  experiment = experiment_sources.find(name, options)
  # Imported late: these import JAX and TensorFlow.
  from adaptors.checkpoints import files
  from adaptors.experiments.lingvo_experiment import LingvoExperiment
  from adaptors.lingvo_checkpoint import converting

  if not isinstance(experiment, LingvoExperiment):
    raise errors.UserError(f'--exp={name} is not a Lingvo experiment')
  experiment = experiment_overrides.changed(
    experiment, skip_bad_records=experiment_flags.skip_bad_records()
  )
  job = _JOB_LOG_DIR.value
  if argv[1] == 'convert' and _TO_LINGVO.value:
    if logdir and not converting.is_converted(job):
      converting.to_jax(experiment, name, job, _print_line)
    lingvos = converting.to_lingvo(experiment, job, lingvos, _print_line)
  elif argv[1] == 'convert':
    converting.to_jax(experiment, name, job, _print_line)
  if _VERIFY.value or argv[1] == 'verify':
    converting.verify(experiment, job, files.newest(lingvos), _print_line)


def _print_line(line: str):
  print(line, flush=True)


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
