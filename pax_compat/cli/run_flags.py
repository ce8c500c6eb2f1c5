"""What flags change about a run: options, JAX's settings, datasets."""

import dataclasses
import random
import time
from typing import Any

from absl import flags, logging

from pax_compat import errors
from pax_compat.cli import guard_flags, pax_flags
from pax_compat.runs import compiled_programs

_COMPILATION_CACHE = flags.DEFINE_string(
  'compilation_cache_dir',
  None,
  'Folder of compiled programs, so that the second start of a run does not'
  ' compile: a path, gs://bucket/folder for the hosts of a pod, or "" for none.'
  " By default $JAX_COMPILATION_CACHE_DIR, or else a folder in the user's"
  ' cache.',
)
_PEAK = flags.DEFINE_float(
  'peak_tflops',
  None,
  'Peak of a device in 10^12 floating point operations per second, for the'
  ' MFU. By default that of its kind, if it is a known TPU or GPU.',
  lower_bound=1e-9,
)
# Pax's number: so many processes do not overload a storage service.
_PROCESSES_WITHOUT_JITTER = 128
_SECONDS_WITHOUT_LIMIT = 6 * 60 * 60


def options(kind: type) -> Any:
  """Returns the options of a run.

  Args:
    kind: `trainer.run_options.RunOptions`, which is imported late.
  """
  timeout = pax_flags.value('async_timeout_secs')
  return kind(
    saves_checkpoints=pax_flags.value('enable_checkpoint_saving') is not False,
    save_timeout_seconds=_SECONDS_WITHOUT_LIMIT if timeout == 0 else timeout,
    checkpoint_todelete_subdir=pax_flags.value('checkpoint_todelete_subdir'),
    writes_summaries=pax_flags.value('enable_summary_writer') is not False,
    only_scalars=bool(pax_flags.value('pax_only_aggregate_summaries')),
    peak_flops=peak_flops(),
    **guard_flags.options(),
  )


def job_options(kind: type) -> Any:
  """Returns the options of a job of another mode than train.

  Args:
    kind: `jobs.job_options.JobOptions`, which is imported late.
  """
  return kind(
    mode=pax_flags.mode(),
    restore_dir=pax_flags.value('restore_checkpoint_dir'),
    steps=tuple(pax_flags.value('restore_checkpoint_step') or ()),
    also_evaluates=bool(pax_flags.value('eval_during_decode')),
  )


def peak_flops() -> float | None:
  """Returns the peak FLOPs per second of a device, None if not given."""
  return None if _PEAK.value is None else 1e12 * _PEAK.value


def check():
  """Raises a UserError for a value that cannot be used."""
  for name, least in (
    ('async_timeout_secs', 0),
    ('startup_random_jitter_max_secs', 0),
    ('jax_profiler_port', 1),
  ):
    given = pax_flags.value(name)
    if given is not None and given < least:
      raise errors.UserError(
        f'--{name} is {given}; expected a number of at least {least}'
      )
  subdir = pax_flags.value('checkpoint_todelete_subdir')
  if subdir is not None and (
    not subdir.strip('.') or '/' in subdir or subdir[0].isdigit()
  ):
    raise errors.UserError(
      f'--checkpoint_todelete_subdir={subdir}: expected the name of a subfolder'
      ' that does not begin with a digit, such as trash'
    )


def configure_jax():
  """Applies the flags that are settings of JAX. Call it before JAX is used."""
  import jax  # Imported late: it takes a second.

  option = pax_flags.value('jax_traceback_filtering_option')
  if option is not None:
    jax.config.update('jax_traceback_filtering', option)
  hardware = pax_flags.value('globally_use_hardware_rng')
  if hardware is not None:
    kind = 'rbg' if hardware else 'threefry2x32'
    jax.config.update('jax_default_prng_impl', kind)
  compiled_programs.use(_COMPILATION_CACHE.value)


def start_services():
  """Starts JAX's profiler server, and waits, if the flags request it.

  Call it after all processes are connected.
  """
  import jax  # Imported late: it takes a second.

  port = pax_flags.value('jax_profiler_port')
  if port is not None:
    jax.profiler.start_server(port)
    logging.info("JAX's profiler server listens on port %d", port)
  seconds = pax_flags.value('startup_random_jitter_max_secs')
  if seconds and jax.process_count() > _PROCESSES_WITHOUT_JITTER:
    # Not the seeds of the run: processes must differ.
    wait = random.SystemRandom().uniform(0, seconds)
    logging.info('waiting for %.1f s (--startup_random_jitter_max_secs)', wait)
    time.sleep(wait)


def of_experiment(experiment: Any) -> Any:
  """Returns a resolved experiment with the changes of Pax's flags.

  They set `auto_sharding` of its task, and for training leave out datasets;
  jobs of other modes use all of their datasets.

  Args:
    experiment: the `experiments.resolved.ResolvedExperiment`.

  Raises:
    UserError: `--decode_during_train` without an interval.
  """
  if pax_flags.value('enable_auto_sharding'):
    experiment.task.train.auto_sharding = True
  if pax_flags.mode() != pax_flags.TRAIN:
    return experiment
  if pax_flags.value('eval_on_test') is False:
    experiment = dataclasses.replace(
      experiment, datasets=experiment.train_datasets, eval_datasets=()
    )
  decodes = pax_flags.value('decode_during_train')
  if decodes is False:
    experiment = dataclasses.replace(experiment, decode_datasets=())
  if decodes and not experiment.task.train.decode_interval_steps:
    raise errors.UserError(
      '--decode_during_train needs an interval; expected, for example,'
      ' --set=task.train.decode_interval_steps=1000'
    )
  return experiment
