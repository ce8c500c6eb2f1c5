"""Flags of a study: `--study`, and those that a run gets as its trial."""

from typing import Any

from absl import flags

from pax_compat import errors
from pax_compat.cli import experiment_flags, pax_flags

_TUNE = flags.DEFINE_multi_string(
  'tune',
  [],
  'A setting that --study searches, with its values: a config field, as in'
  ' --tune=task.train.learner.optimizer.learning_rate=log:1e-4..1e-2, or a'
  ' class attribute, as in --tune=attr:NUM_LAYERS=2,4,8. May be repeated.',
)
_SEARCH = flags.DEFINE_enum(
  'search',
  None,
  ['random', 'grid', 'bayesian', 'evolution'],
  'How --study chooses the values of a trial: at random (the default), all'
  " combinations, from the results of other trials (Optuna's TPE; pip install"
  " 'pax-compat[tune]'), or by regularized evolution.",
)
_POPULATION_SIZE = flags.DEFINE_integer(
  'tune_population_size',
  None,
  'Trials that --search=evolution may mutate: the last ones. By default 100.',
  lower_bound=1,
)
_TOURNAMENT_SIZE = flags.DEFINE_integer(
  'tune_tournament_size',
  None,
  'Trials of the population that --search=evolution compares; it mutates the'
  ' best one. By default 10, or the population if that is smaller.',
  lower_bound=1,
)
_METRIC = flags.DEFINE_string(
  'tune_metric',
  None,
  'The metric that --study improves, as <split>/<name> of metrics.jsonl, such'
  ' as eval_dev/loss. By default eval/loss: the loss of the only eval dataset.',
)
_GOAL = flags.DEFINE_enum(
  'tune_goal', None, ['min', 'max'], 'Whether --study minimizes (the default).'
)
_VALUE = flags.DEFINE_enum(
  'tune_value',
  None,
  ['last', 'best'],
  'Which value of its metric a trial has: the last one (the default).',
)
_STOPPING = flags.DEFINE_enum(
  'tune_stopping',
  None,
  ['none', 'median'],
  'median ends a trial whose best value so far is worse than the median of the'
  ' finished trials after as many steps.',
)
_MIN_TRIALS = flags.DEFINE_integer(
  'tune_min_trials',
  3,
  'Finished trials before --tune_stopping=median ends one.',
  lower_bound=1,
)
_MIN_STEPS = flags.DEFINE_integer(
  'tune_min_steps',
  0,
  'Steps that each trial makes before --tune_stopping=median ends it.',
  lower_bound=0,
)
_SEED = flags.DEFINE_integer(
  'tune_seed', None, 'Seed of the values that --study chooses, by default 0.'
)
_WORKERS = flags.DEFINE_integer(
  'tune_workers',
  1,
  'Trials that run at the same time, on this machine.',
  lower_bound=1,
)
_ENV = flags.DEFINE_multi_string(
  'tune_env',
  [],
  'Environment variable of each trial, in which {worker} is the number of its'
  ' worker: --tune_env=CUDA_VISIBLE_DEVICES={worker}. May be repeated.',
)
_TRIAL_OF = flags.DEFINE_string(
  'trial_of',
  None,
  'Folder of the study that this run is a trial of: it ends early by the'
  ' rule of the study, which starts such runs.',
)
_OWN = (
  *('tune', 'search', 'tune_metric', 'tune_goal', 'tune_value'),
  *('tune_stopping', 'tune_min_trials', 'tune_min_steps', 'tune_seed'),
  *('tune_workers', 'tune_env'),
  *('tune_population_size', 'tune_tournament_size'),
)
# Flags that trials do not get: those of the study, its folder and others that
# are expanded before.
_NOT_PASSED_ON = (
  *_OWN,
  *('study', 'num_trials', 'job_log_dir', 'logdir', 'flagfile', 'undefok'),
  *('controller_mode', 'metrics_from'),
)
# Those that do not change what a trial computes, with absl's own.
_NOT_RECORDED = (
  *('compilation_cache_dir', 'jax_profiler_port', 'quiet', 'peak_tflops'),
)
_OF_SEVERAL_HOSTS = ('server_addr', 'num_hosts', 'host_idx', 'multiprocess')


def is_study() -> bool:
  """Whether the command is a study.

  Raises:
    UserError: it is not, but has a flag of a study.
  """
  known = flags.FLAGS
  if known['study'].value:
    return True
  for name in (*_OWN, 'num_trials'):
    if known[name].present:
      raise errors.UserError(
        f'--{name} is for a study; expected --study=NAME, too'
      )
  if known['study'].value == '':
    raise errors.UserError('--study is empty; expected a name')
  return False


def trial_of() -> str | None:
  """Returns the folder of the study that this run is a trial of, if any."""
  return _TRIAL_OF.value


def check():
  """Raises a UserError if a study cannot have one of the flags."""
  if pax_flags.mode() != pax_flags.TRAIN:
    raise errors.UserError(
      f'--study is for --mode=train, not for --mode={pax_flags.mode()}'
    )
  if _TRIAL_OF.value:
    raise errors.UserError('--study and --trial_of exclude each other')
  if pax_flags.value('enable_checkpoint_saving') is False:
    raise errors.UserError(
      '--study needs checkpoints, with which an interrupted trial goes on;'
      ' expected no --enable_checkpoint_saving=false'
    )
  for name in _OF_SEVERAL_HOSTS:
    if flags.FLAGS[name].value is not None and flags.FLAGS[name].value:
      raise errors.UserError(
        f'--{name} is not supported with --study: trials run on this machine'
      )
  if _STOPPING.value != 'median':
    for flag in (_MIN_TRIALS, _MIN_STEPS):
      if flag.present:
        raise errors.UserError(
          f'--{flag.name} is for --tune_stopping=median; expected both, or'
          ' neither'
        )
  number = pax_flags.value('num_trials')
  if number is not None and number < 1:
    raise errors.UserError(f'--num_trials is {number}; expected at least 1')
  _environment()


def options(kind: type, stopping_kind: type, evolution_kind: type) -> Any:
  """Returns the options of a study.

  Args:
    kind: `tuning.planning.Options`, which is imported late.
    stopping_kind: `tuning.records.Stopping`.
    evolution_kind: `tuning.records.Evolution`.
  """
  stopping = None
  if _STOPPING.value is not None:
    stopping = stopping_kind(
      rule=_STOPPING.value,
      min_trials=_MIN_TRIALS.value,
      min_steps=_MIN_STEPS.value,
    )
  passed = _passed_on()
  return kind(
    study=flags.FLAGS['study'].value,
    experiment=experiment_flags.name(),
    tune=tuple(_TUNE.value),
    num_trials=pax_flags.value('num_trials'),
    search=_SEARCH.value,
    metric=_METRIC.value and _METRIC.value.strip().replace(' ', '_'),
    goal=_GOAL.value,
    value=_VALUE.value,
    stopping=stopping,
    evolution=_evolution(evolution_kind),
    seed=_SEED.value,
    workers=_WORKERS.value,
    env=_environment(),
    flags=tuple(text for _, text in passed),
    recorded_flags=tuple(text for recorded, text in passed if recorded),
  )


def _evolution(kind: type) -> Any:
  """Returns the settings of evolution, None if no flag is given."""
  population, tournament = _POPULATION_SIZE.value, _TOURNAMENT_SIZE.value
  if population is None and tournament is None:
    return None
  fields = {} if population is None else {'population_size': population}
  if tournament is None:
    tournament = min(population, kind().tournament_size)
  return kind(**fields, tournament_size=tournament)


def _environment() -> dict[str, str]:
  found = {}
  for text in _ENV.value:
    name, equals, value = text.partition('=')
    if not name or not equals:
      raise errors.UserError(
        f'--tune_env={text}: expected NAME=value, as in'
        ' CUDA_VISIBLE_DEVICES={worker}'
      )
    found[name] = value
  return found


def _passed_on() -> list[tuple[bool, str]]:
  """Returns the flags of each trial, and whether each changes its results."""
  found = []
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    for flag in defined:
      if not flag.present or flag.name in _NOT_PASSED_ON:
        continue
      recorded = not module.startswith('absl') and (
        flag.name not in _NOT_RECORDED
      )
      found += [(recorded, text) for text in _texts(flag)]
  # Key flags of a program belong to several modules.
  return list(dict.fromkeys(found))


def _texts(flag: flags.Flag) -> list[str]:
  """Returns a flag as it is given, once for each of its values."""
  if isinstance(flag, flags.MultiFlag):
    return [f'--{flag.name}={value}' for value in flag.value]
  return [flag.serialize()]
