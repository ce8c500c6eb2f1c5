"""The settings of a study that an experiment's `search()` returns."""

import dataclasses
from typing import Any

from pax_compat import base_experiment, errors
from pax_compat import config as config_lib
from pax_compat.tuning import algorithms, automl, metric_values, records
from pax_compat.tuning import stopping_rules as rules

_GOALS = {
  automl.MINIMIZE: metric_values.MIN,
  automl.MAXIMIZE: metric_values.MAX,
}
_ALGORITHMS = {
  automl.RandomSearch: algorithms.RANDOM,
  automl.Sweeping: algorithms.GRID,
  automl.RegularizedEvolution: algorithms.EVOLUTION,
}
# Fields of `SearchHParams` that must have their default.
_REFUSED = {
  'prior_study_ids': 'a study has its own trials only',
  'add_prior_trials': 'a study has its own trials only',
  'enable_partitioner_tuning': '--tune sets mesh fields of the model',
  'enable_train_programs_tuning': '--tune sets fields of task.train',
  'vizier_service_endpoint': 'the algorithm runs in the process of the study',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searched:
  """Settings; None for those that `search()` leaves open."""

  search: str | None = None
  seed: int | None = None
  metric: str | None = None
  aggregator: str = ''
  goal: str | None = None
  value: str | None = None
  num_trials: int | None = None
  stopping: records.Stopping | None = None
  evolution: records.Evolution | None = None


def of_experiment(experiment: base_experiment.BaseExperiment) -> Searched:
  """Returns the settings of `search()`, if the experiment defines it.

  Raises:
    UserError: it uses something that is not supported.
  """
  cls = type(experiment)
  if cls.search is base_experiment.BaseExperiment.search:
    return Searched()
  found = experiment.search()
  where = f'{cls.__name__}.search()'
  if not isinstance(found, automl.SearchHParams):
    raise errors.UserError(
      f'{where} returns a {type(found).__name__}; expected an'
      ' automl.SearchHParams'
    )
  _check(found, where)
  reward = _of_kind(found.search_reward, where, automl.SingleObjective)
  goal = None if reward is None else _goal(reward, where)
  algorithm = _of_kind(found.search_algorithm, where, *_ALGORITHMS)
  return Searched(
    search=_ALGORITHMS.get(type(algorithm)),
    seed=getattr(algorithm, 'seed', None),
    evolution=_evolution(algorithm, where),
    metric=None if reward is None else _metric(reward.metric),
    aggregator=_aggregator(reward),
    goal=goal,
    value=_value(found, where, goal),
    num_trials=(
      None if found.max_num_trials >= automl.NO_LIMIT else found.max_num_trials
    ),
    stopping=_stopping(found, where, goal),
  )


def _metric(metric: automl.Metric) -> str:
  name = metric.sub_experiment_id
  return f'{metric.name}:{name}' if name else metric.name


def _aggregator(reward: automl.SingleObjective | None) -> str:
  chosen = reward and reward.metric.aggregator
  return chosen.value if chosen else ''


def _check(found: automl.SearchHParams, where: str):
  for field in dataclasses.fields(found):
    if field.name not in _REFUSED:
      continue
    if getattr(found, field.name) != field.default:
      raise errors.UserError(
        f'{where}: {field.name} is not supported: {_REFUSED[field.name]}'
      )


def _of_kind(config: Any, where: str, *kinds: type) -> Any:
  """Returns the object of a config, which must be of one of the classes."""
  if config is None:
    return None
  if isinstance(config, config_lib.Config):
    config = config.Instantiate()
  if not isinstance(config, kinds):
    expected = ' or '.join(kind.__name__ for kind in kinds)
    raise errors.UserError(
      f'{where}: {type(config).__name__} is not supported; expected {expected}'
    )
  if getattr(config, 'metric', None) and kinds[0] is not automl.SingleObjective:
    raise errors.UserError(
      f'{where}: metric of {type(config).__name__} is not supported: it is that'
      ' of search_reward'
    )
  return config


def _evolution(algorithm: Any, where: str) -> records.Evolution | None:
  if not isinstance(algorithm, automl.RegularizedEvolution):
    return None
  if algorithm.mutator is not None:
    raise errors.UserError(
      f'{where}: mutator of RegularizedEvolution is not supported: a child has'
      ' another value of one parameter'
    )
  return records.Evolution(
    population_size=algorithm.population_size,
    tournament_size=algorithm.tournament_size,
  )


def _goal(reward: automl.SingleObjective, where: str) -> str:
  if reward.reward_for_nan is not None:
    raise errors.UserError(
      f'{where}: reward_for_nan is not supported: trials whose metric is NaN'
      ' are the worst'
    )
  if reward.goal not in _GOALS:
    raise errors.UserError(
      f"{where}: goal is {reward.goal!r}; expected 'maximize' or 'minimize'"
    )
  return _GOALS[reward.goal]


def _value(
  found: automl.SearchHParams, where: str, goal: str | None
) -> str | None:
  aggregator = _of_kind(
    found.cross_step_metric_aggregator,
    where,
    automl.LastReportedMetricValues,
    automl.MetricsWithMaxValue,
    automl.MetricsWithMinValue,
  )
  if aggregator is None:
    return None
  if isinstance(aggregator, automl.LastReportedMetricValues):
    return metric_values.LAST
  is_max = isinstance(aggregator, automl.MetricsWithMaxValue)
  if goal != (metric_values.MAX if is_max else metric_values.MIN):
    raise errors.UserError(
      f'{where}: {type(aggregator).__name__} does not fit the goal of its'
      ' search_reward, which takes the best value'
    )
  return metric_values.BEST


def _stopping(
  found: automl.SearchHParams, where: str, goal: str | None
) -> records.Stopping | None:
  policy = _of_kind(found.early_stopping, where, automl.EarlyStoppingByValue)
  if policy is None:
    return None
  if not policy.step_values or not policy.maximize or goal is None:
    raise errors.UserError(
      f'{where}: EarlyStoppingByValue needs step_values, maximize=True and a'
      ' search_reward, whose value it limits'
    )
  # The reward is minus the metric, if that is to be small.
  sign = -1 if goal == metric_values.MIN else 1
  return records.Stopping(
    rule=rules.VALUE,
    step_values=tuple((int(s), sign * float(v)) for s, v in policy.step_values),
  )
