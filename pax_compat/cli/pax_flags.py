"""The flags of Pax's `main.py`.

Each has its effect, or is accepted because it is always so, or is refused with
what to use instead. `TABLE` is the list; `docs/flags.md` shows it. The flags of
experiments, of folders and of processes are defined in other modules.
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from pax_compat import errors


class Verdict(enum.Enum):
  """What becomes of a flag."""

  EFFECT = 'has its effect'
  ALWAYS = 'always so'
  REFUSED = 'refused'


@dataclasses.dataclass(frozen=True)
class PaxFlag:
  """A flag of Pax.

  Attributes:
    name: of the flag.
    define: defines it, with absl's arguments.
    verdict: what becomes of it.
    text: its effect, or why it is refused and what to use instead.
    accepted: values that are accepted in silence, because they ask for nothing:
      Pax's defaults.
    choices: of an enum.
  """

  name: str
  define: Callable[..., Any]
  verdict: Verdict
  text: str
  accepted: Sequence[Any] = ()
  choices: Sequence[str] = ()


_BOOL, _INT, _STRING = (
  flags.DEFINE_bool,
  flags.DEFINE_integer,
  flags.DEFINE_string,
)
TRAIN = 'train'
# As in `jobs.job_options`, which is imported late.
_JOBS = ('eval', 'decode', 'decode_once', 'infer')
_DECODING = ('decode', 'decode_once')
_SERVICES = ('tf_data_service_dispatcher', 'tf_data_service_worker')
_ONE_CONTROLLER = (
  'one process controls a study and starts its trials; --tune_workers=K runs K'
  ' of them at the same time'
)
_NO_DATA_SERVICE = (
  'each host reads its own part of the data, without a tf.data service'
)
_NO_FIDDLE_PROGRAM = (
  'a config is named, never computed from text; expected --exp=NAME, and'
  ' --fdl_set=path=value for its fields'
)
# Flags that only some modes have, with those modes and what to use instead.
_ONLY_JOBS = (
  'a training run continues from its own --job_log_dir; copy checkpoints there'
)
_OF_MODES = {
  'restore_checkpoint_dir': (_JOBS, _ONLY_JOBS),
  'restore_checkpoint_step': (_JOBS, _ONLY_JOBS),
  'eval_during_decode': (
    _DECODING,
    'a training run evaluates anyway, and --mode=eval evaluates only',
  ),
}


def _effect(name, define, text, **more) -> PaxFlag:
  return PaxFlag(name, define, Verdict.EFFECT, text, **more)


def _always(name, text, accepted=()) -> PaxFlag:
  return PaxFlag(name, _BOOL, Verdict.ALWAYS, text, accepted)


def _refused(name, define, text, *accepted, choices=()) -> PaxFlag:
  return PaxFlag(name, define, Verdict.REFUSED, text, accepted, choices)


TABLE: tuple[PaxFlag, ...] = (
  _effect(
    'mode',
    flags.DEFINE_enum,
    'What the job does: train (the default); eval or decode, which take each'
    ' new checkpoint of a run until its training ends; decode_once or infer,'
    ' which take the newest one. See docs/jobs.md.',
    choices=(TRAIN, *_JOBS, *_SERVICES),
  ),
  _effect(
    'eval_on_test',
    _BOOL,
    'False leaves out the eval datasets. By default they are always evaluated'
    ' while training and at the end. Other modes than train ignore it.',
  ),
  _effect(
    'decode_during_train',
    _BOOL,
    'True requires that task.train.decode_interval_steps is set, which by'
    ' itself decodes while training; False leaves out the decode datasets.'
    ' Other modes than train ignore it.',
  ),
  _effect(
    'eval_during_decode',
    _BOOL,
    'True evaluates the eval datasets, too, in decode and decode_once.',
  ),
  _refused(
    'maybe_use_persistence_checkpointing',
    _BOOL,
    "it is for Google's own storage; checkpoints are written with Orbax",
    False,
  ),
  _always(
    'jax_fully_async_checkpoint',
    'Checkpoints are always written in the background.',
  ),
  _always(
    'exit_after_ondemand_checkpoint',
    'A run that is stopped or preempted always saves and exits.',
  ),
  _always(
    'tensorstore_use_ocdbt', "Checkpoints always have Orbax's OCDBT layout."
  ),
  _effect(
    'async_timeout_secs',
    _INT,
    'Seconds that a save in the background may take, by default 1200; 0 for 6'
    ' hours.',
  ),
  _effect(
    'startup_random_jitter_max_secs',
    _INT,
    'With more than 128 processes, each waits for a random time up to this'
    ' many seconds at the start. By default none waits (60 in Pax).',
  ),
  _effect(
    'jax_traceback_filtering_option',
    flags.DEFINE_enum,
    "How JAX filters tracebacks: JAX's own jax_traceback_filtering.",
    choices=(
      'off',
      'auto',
      'tracebackhide',
      'remove_frames',
      'quiet_remove_frames',
    ),
  ),
  _refused(
    'decode_output_pickle',
    _BOOL,
    'reading a pickle runs code; decoded outputs are JSON lines, in'
    ' decode_out/*.jsonl',
    False,
  ),
  _effect(
    'checkpoint_todelete_subdir',
    _STRING,
    'Subfolder of checkpoints/ that old checkpoints are moved to instead of'
    ' being deleted.',
  ),
  _effect(
    'restore_checkpoint_dir',
    _STRING,
    'Folder of the checkpoints that a job of another mode than train reads, or'
    ' of their run. By default --job_log_dir.',
  ),
  _effect(
    'restore_checkpoint_step',
    flags.DEFINE_multi_integer,
    'Step of the checkpoint that a job of another mode than train takes, even'
    ' if it took it before. May be repeated.',
  ),
  _effect(
    'globally_use_hardware_rng',
    _BOOL,
    'True computes random numbers with the generator of the hardware (rbg),'
    " which is Pax's default. By default they are JAX's (threefry), which are"
    ' the same on any hardware and any mesh.',
  ),
  _effect(
    'jax_profiler_port',
    _INT,
    "Port of JAX's profiler server, for TensorBoard's capture button.",
  ),
  _effect(
    'enable_auto_sharding',
    _BOOL,
    'True splits batches and all large weights over all devices, whatever mesh'
    ' the experiment has: data parallel and fully sharded; with'
    ' --set=task.train.tensor_parallel=N tensor parallel, too. The choice is'
    ' printed.',
  ),
  _effect(
    'enable_checkpoint_saving',
    _BOOL,
    'False saves no checkpoint, so that the run cannot continue.',
  ),
  _always(
    'enforce_restore_shape_check',
    'A checkpoint whose shapes differ from those of the model is always an'
    ' error.',
  ),
  _effect(
    'study',
    _STRING,
    'Name of a study: runs of the experiment that search for good settings, in'
    ' --job_log_dir/trials. See docs/tuning.md.',
  ),
  _refused(
    'controller_mode',
    flags.DEFINE_enum,
    _ONE_CONTROLLER,
    'auto',
    choices=('primary', 'secondary', 'auto'),
  ),
  _refused('tuner_group', _STRING, _ONE_CONTROLLER),
  _refused(
    'metrics_from',
    flags.DEFINE_enum,
    'each trial trains, evaluates and decodes in one run;'
    ' --tune_metric=train/loss or decode_dev/bleu names the metric',
    'eval',
    choices=('train', 'eval', 'decode'),
  ),
  _effect(
    'num_trials',
    _INT,
    'The largest number of trials of --study. Without it, --search=grid tries'
    ' all combinations.',
  ),
  _refused(
    'pythia_port', _INT, 'the algorithm runs in the process of the study'
  ),
  _effect(
    'fdl_set',
    flags.DEFINE_multi_string,
    'The same as --set: --fdl_set=task.train.num_train_steps=100. Values are'
    ' literals, never code.',
  ),
  _effect(
    'fdl',
    flags.DEFINE_multi_string,
    "--fdl=set:path=value is the same as --set=path=value. Fiddle's other"
    ' commands are refused: ' + _NO_FIDDLE_PROGRAM + '.',
  ),
  _refused('fdl_config', _STRING, _NO_FIDDLE_PROGRAM),
  _refused('fdl_config_file', _STRING, _NO_FIDDLE_PROGRAM),
  _refused('fdl_help', _BOOL, 'see --help, and config.txt of a run', False),
  _effect(
    'enable_summary_writer',
    _BOOL,
    'False writes no event files for TensorBoard; metrics.jsonl remains.',
  ),
  _always(
    'pmap_use_tensorstore', 'Checkpoints are always written with TensorStore.'
  ),
  _effect(
    'pax_only_aggregate_summaries',
    _BOOL,
    'True writes scalars only: no histograms, images and texts.',
  ),
  *(
    _refused(f'tf_data_service_{name}', _STRING, _NO_DATA_SERVICE)
    for name in (
      'port',
      'dispatcher_address',
      'worker_address',
      'data_transfer_protocol',
      'data_transfer_address',
      'work_dir',
      'worker_addresses',
      'address',
    )
  ),
  _refused(
    'tf_data_service_fault_tolerant_mode', _BOOL, _NO_DATA_SERVICE, False
  ),
)


def _help(flag: PaxFlag) -> str:
  if flag.verdict is Verdict.REFUSED:
    return f'Refused: {flag.text}.'
  return flag.text


for _flag in TABLE:
  _choices = (list(_flag.choices),) if _flag.choices else ()
  # The default of each is None, so that a flag that is given is known.
  _flag.define(_flag.name, None, *_choices, _help(_flag))


def value(name: str) -> Any:
  """Returns the value of a flag, None if it is not given."""
  return flags.FLAGS[name].value


def mode() -> str:
  """Returns what the job does, by default `TRAIN`."""
  return value('mode') or TRAIN


def check():
  """Raises a UserError for a flag that is refused.

  Raises:
    UserError: it names the first such flag, and what to use instead; or a flag
      that the mode does not have.
  """
  for flag in TABLE:
    given = value(flag.name)
    if flag.verdict is not Verdict.REFUSED or given is None:
      continue
    if given not in flag.accepted:
      raise errors.UserError(f'--{flag.name} is not supported: {flag.text}')
  if mode() in _SERVICES:
    raise errors.UserError(
      f'--mode={mode()} is not supported: {_NO_DATA_SERVICE}'
    )
  for name, (modes, instead) in _OF_MODES.items():
    if value(name) and mode() not in modes:
      raise errors.UserError(
        f'--{name} is for --mode={", ".join(modes)}, not for --mode={mode()}:'
        f' {instead}'
      )
  for step in value('restore_checkpoint_step') or ():
    if step < 0:
      raise errors.UserError(
        f'--restore_checkpoint_step is {step}; expected a number of at least 0'
      )
  settings()


def notes() -> list[str]:
  """Returns one line for each given flag that is always so."""
  found = []
  for flag in TABLE:
    if flag.verdict is Verdict.ALWAYS and value(flag.name) is not None:
      given = '' if value(flag.name) else '=false has no effect'
      found.append(f'--{flag.name}{given}: {_lower_first(flag.text)}')
  return found


def _lower_first(text: str) -> str:
  return text[0].lower() + text[1:].rstrip('.')


def settings() -> list[str]:
  """Returns the settings `path=value` of --fdl_set and --fdl=set:...

  Raises:
    UserError: --fdl has another of Fiddle's commands.
  """
  found = list(value('fdl_set') or ())
  for command in value('fdl') or ():
    kind, colon, setting = command.partition(':')
    if kind != 'set' or not colon:
      raise errors.UserError(
        f'--fdl={command} is not supported: {_NO_FIDDLE_PROGRAM}'
      )
    found.append(setting)
  return found
