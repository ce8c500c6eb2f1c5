"""What a study does, from its flags and its experiment."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from pax_compat import base_experiment, errors
from pax_compat.configs import config_overrides
from pax_compat.experiments import (
  class_attributes,
  class_hypers,
  experiment_overrides,
  resolved,
)
from pax_compat.tuning import (
  algorithms,
  automl,
  metric_values,
  records,
  search_hparams,
  spaces,
  study,
  sub_experiments,
)

# Finds the experiment, with changes of its attributes.
Find = Callable[[Sequence[str]], base_experiment.BaseExperiment]
_METRIC = 'eval/loss'
_SET, _ATTR = '--set=', '--attr='


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """The flags of a study. Those that are None leave `search()` the choice.

  Attributes:
    study: its name.
    experiment: the name of the experiment.
    tune: the values of `--tune`.
    settings: changes of configs that all trials have.
    num_trials: how many trials there are at most.
    search: the algorithm.
    metric: see `metric_values`.
    goal: 'min' or 'max'.
    value: whether the 'last' or the 'best' value of the metric counts.
    stopping: when a trial ends early.
    evolution: settings of that algorithm.
    seed: of the algorithm.
    workers: trials that run at the same time.
    env: environment variables of each trial, see `study.Plan`.
    flags: that all trials get.
    recorded_flags: those that change what a trial computes.
  """

  study: str
  experiment: str
  tune: tuple[str, ...] = ()
  settings: tuple[str, ...] = ()
  num_trials: int | None = None
  search: str | None = None
  metric: str | None = None
  goal: str | None = None
  value: str | None = None
  stopping: records.Stopping | None = None
  evolution: records.Evolution | None = None
  seed: int | None = None
  workers: int = 1
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  flags: tuple[str, ...] = ()
  recorded_flags: tuple[str, ...] = ()


def plan(find: Find, options: Options) -> study.Plan:
  """Returns what a study does.

  JAX uses the CPU in this process from now on: the devices are for the trials.

  Args:
    find: returns the experiment that all trials have, with more changes
      `NAME=value` of its attributes.
    options: the flags.

  Raises:
    UserError: there is nothing to search, or a setting is invalid.
  """
  experiment = find(())
  searched = search_hparams.of_experiment(experiment)
  space = space_of(experiment, options.tune)
  metric = options.metric or searched.metric or _METRIC
  runs = sub_experiments.names(experiment)
  _check(find, space, options, sub_experiments.split_metric(metric, runs)[0])
  settings = records.Settings(
    study=options.study,
    experiment=options.experiment,
    space=space.described(),
    search=options.search or searched.search or algorithms.RANDOM,
    seed=next((x for x in (options.seed, searched.seed) if x is not None), 0),
    metric=metric,
    goal=options.goal or searched.goal or metric_values.MIN,
    value=options.value or searched.value or metric_values.LAST,
    stopping=options.stopping or searched.stopping or records.Stopping(),
    flags=options.recorded_flags,
    evolution=options.evolution or searched.evolution or records.Evolution(),
    sub_experiments=runs,
    aggregator=searched.aggregator,
  )
  sub_experiments.check(settings)
  if options.evolution and settings.search != algorithms.EVOLUTION:
    raise errors.UserError(
      f'--search={settings.search} does not read --tune_population_size and'
      ' --tune_tournament_size; expected --search=evolution'
    )
  num_trials = options.num_trials or searched.num_trials
  if num_trials is None and settings.search != algorithms.GRID:
    raise errors.UserError(
      f'--search={settings.search} needs --num_trials; expected, for example,'
      ' --num_trials=20'
    )
  _warn_of_random_trials(settings, num_trials)
  return study.Plan(
    settings=settings,
    space=space,
    num_trials=num_trials,
    workers=options.workers,
    env=options.env,
    flags=options.flags,
  )


def _warn_of_random_trials(settings: records.Settings, num_trials: int | None):
  population = settings.evolution.population_size
  if settings.search == algorithms.EVOLUTION and num_trials <= population:
    logging.warning(
      'all %d trials will be random: evolution starts after population_size ='
      ' %d of them; --tune_population_size changes it',
      num_trials,
      population,
    )


def space_of(
  experiment: base_experiment.BaseExperiment, tune: Sequence[str]
) -> spaces.Space:
  """Returns the search space of `--tune` and of the experiment's class.

  Args:
    experiment: its class attributes may be search spaces of PyGlove, or it may
      have a `parameter_sweep`.
    tune: the values of `--tune`, which replace those of the same attribute.

  Raises:
    UserError: there is none, or it is invalid.
  """
  given = spaces.parsed(tune)
  known = class_attributes.attributes(type(experiment))
  found = list(given.parameters)
  rows = known.get(automl.SWEEP_ATTRIBUTE)
  if rows:
    found.append(_sweep(rows))
  for name, value in known.items():
    if class_hypers.is_one(value) and name not in given.names:
      found.append(_of_hyper(name, value))
  if not found:
    raise errors.UserError(
      f'{type(experiment).__name__} has no class attribute to search, such as'
      ' LR = pg.oneof([1e-3, 1e-2]); expected one, or'
      ' --tune=task.train.learner.optimizer.learning_rate=log:1e-4..1e-2'
    )
  return spaces.Space(tuple(found))


def _of_hyper(name: str, hyper: Any) -> spaces.Parameter:
  """Returns the parameter of a search space of PyGlove."""
  flag = f'{_ATTR}{name}='
  try:
    if class_hypers.is_range(hyper):
      low, high = float(hyper.min_value), float(hyper.max_value)
      return spaces.Range(name, low, high, flag, log=hyper.scale == 'log')
    texts = class_hypers.candidates(hyper)
  except errors.UserError as e:
    raise errors.UserError(f'the class attribute {name}: {e}') from e
  return spaces.Choices(
    name, tuple(spaces.Choice(text, (flag + text,)) for text in texts)
  )


def _sweep(rows: Sequence[tuple[Any, ...]]) -> spaces.Choices:
  """Returns the parameter whose values are the rows of a sweep."""
  names, *values = rows
  choices = []
  for row in values:
    pairs = [
      f'{name}={getattr(value, "__name__", value)!s}'
      for name, value in zip(names, row, strict=True)
    ]
    flags = tuple(f'{_ATTR}{pair}' for pair in pairs)
    choices.append(spaces.Choice(' '.join(pairs), flags))
  return spaces.Choices(','.join(names), tuple(choices))


def _check(
  find: Find,
  space: spaces.Space,
  options: Options,
  metric: str,
):
  """Raises a UserError for a name or a value that does not exist.

  What can only be known on the devices is left to the first trial.
  """
  _check_metric_name(metric)
  first: dict[str, Any] = {}
  for parameter in space.parameters:
    for value in parameter.extremes():
      flags = parameter.flags(value)
      first.setdefault(parameter.name, value)
      if attributes := _without(_ATTR, flags):
        find(attributes)
      experiment_overrides.check(_without(_SET, flags))
    _check_fixed(parameter, options)
  made = _resolved(find, space.flags(first), options)
  if made is None:
    return
  for parameter in space.parameters:
    for value in parameter.extremes():
      config_overrides.apply(
        made.configs(), _without(_SET, parameter.flags(value))
      )
  _check_dataset(metric, made)


def _check_fixed(parameter: spaces.Parameter, options: Options):
  """Raises a UserError if a setting is searched that all trials have."""
  given = [*options.flags, *(f'{_SET}{one}' for one in options.settings)]
  fixed = {_target(flag) for flag in given}
  for flag in parameter.flags(parameter.extremes()[0]):
    if _target(flag) in fixed:
      raise errors.UserError(
        f'{_target(flag)} is given, and the study searches it, too; expected'
        ' one of the two'
      )


def _target(flag: str) -> str:
  """Returns `--set=path` of `--set=path=value`."""
  return '='.join(part.strip() for part in flag.split('=')[:2])


def _resolved(
  find: Find,
  flags: Sequence[str],
  options: Options,
) -> resolved.ResolvedExperiment | None:
  """Returns the first trial's configs; None if they cannot be made here."""
  import jax  # Imported late: it takes a second.

  jax.config.update('jax_platforms', 'cpu')
  try:
    return resolved.resolve(
      find(_without(_ATTR, flags)),
      name=options.experiment,
      settings=options.settings,
    )
  except Exception as e:  # noqa: BLE001 (whatever the experiment raises)
    logging.debug('the configs cannot be made in this process', exc_info=e)
    return None


def _check_metric_name(metric: str):
  split, slash, name = metric.partition('/')
  if not (split and slash and name):
    raise errors.UserError(
      f'--tune_metric={metric}: expected <split>/<name> as in metrics.jsonl,'
      ' such as eval_dev/loss or train/loss'
    )


def _check_dataset(metric: str, made: resolved.ResolvedExperiment):
  """Raises a UserError for a metric of a dataset that does not exist."""
  split = metric.partition('/')[0].lower()
  for kind, datasets in (
    ('eval', made.eval_datasets),
    ('decode', made.decode_datasets),
  ):
    known = [f'{kind}_{dataset.name}' for dataset in datasets]
    if split == kind and len(known) == 1:
      return
    if split == kind or split.startswith(f'{kind}_'):
      if split in [one.lower() for one in known]:
        return
      raise errors.UserError(
        f'--tune_metric={metric}: '
        + (
          f'expected one of the {kind} datasets {", ".join(known)}'
          if known
          else f'the experiment has no {kind} dataset; expected, for example,'
          ' train/loss'
        )
      )


def _without(prefix: str, flags: Sequence[str]) -> list[str]:
  """Returns the values of the flags that have a prefix."""
  return [f.removeprefix(prefix) for f in flags if f.startswith(prefix)]
