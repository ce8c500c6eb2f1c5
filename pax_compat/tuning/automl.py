"""Pax's `automl`: what an experiment's `search()` returns, for `--study`.

>>> import types
>>> class Words:
...   LR = 0.1
...   def search(self):
...     return hyperparameter_tuning(Metric.eval('loss'), 20, goal='minimize')
>>> Words().search().search_reward.metric.name
'eval/loss'

Fields and classes that are not supported raise a `UserError` with what to use
instead, when a study reads them. See `docs/tuning.md`.
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config import Config

MAXIMIZE, MINIMIZE = 'maximize', 'minimize'
# Pax's default of `max_num_trials`, which means no limit.
NO_LIMIT = 1_000_000
SWEEP_ATTRIBUTE = 'PARAMETER_SWEEP_COMBINATION'
COMBINED_DECISION_ATTR = SWEEP_ATTRIBUTE


class MetricAggregator(enum.Enum):
  """What becomes of the values of several sub-experiments."""

  MAX = 'max'
  MIN = 'min'
  AVERAGE = 'average'
  SUM = 'sum'


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric of `metrics.jsonl`.

  Attributes:
    name: `<split>/<name>`, such as `eval_dev/loss`; the split `eval` or
      `decode` is that of the only dataset that has the metric.
    sub_experiment_id: the name of one of `sub_experiments()`; None for all.
    aggregator: makes one value of those of several; None for none.
  """

  name: str
  sub_experiment_id: str | None = None
  aggregator: MetricAggregator | None = None

  def __post_init__(self):
    kinds = MetricAggregator, type(None)
    if not isinstance(self.aggregator, kinds):
      raise _unsupported(
        f'aggregator {self.aggregator!r} of a Metric', 'use a MetricAggregator'
      )

  @classmethod
  def train(cls, metric_name: str, **fields: Any) -> 'Metric':
    """Returns a metric of training."""
    return cls(f'train/{metric_name}', **fields)

  @classmethod
  def eval(
    cls, metric_name: str, dataset_name: str | None = None, **fields: Any
  ) -> 'Metric':
    """Returns a metric of the evaluation of a dataset."""
    return cls(f'{_split("eval", dataset_name)}/{metric_name}', **fields)

  @classmethod
  def decode(
    cls, metric_name: str, dataset_name: str | None = None, **fields: Any
  ) -> 'Metric':
    """Returns a metric of the decoding of a dataset."""
    return cls(f'{_split("decode", dataset_name)}/{metric_name}', **fields)

  @classmethod
  def eval_train(cls, *args: Any, **kwargs: Any) -> 'Metric':
    """Raises a UserError."""
    raise _unsupported('Metric.eval_train', 'use Metric.train or Metric.eval')

  @classmethod
  def eval_scoring(cls, *args: Any, **kwargs: Any) -> 'Metric':
    """Raises a UserError."""
    raise _unsupported('Metric.eval_scoring', 'use Metric.eval')

  @classmethod
  def train_steps_per_second(cls, **fields: Any) -> 'Metric':
    """Returns the number of steps per second."""
    return cls('train/steps_per_second', **fields)

  @classmethod
  def num_params(cls, *args: Any, **kwargs: Any) -> 'Metric':
    """Raises a UserError."""
    raise _unsupported('Metric.num_params', '--check prints it')


class BaseAlgorithm(config_lib.Configurable):
  """Base of the algorithms; a study uses those of this module only."""


class BaseReward(config_lib.Configurable):
  """Base of the rewards; likewise."""


class BaseEarlyStoppingPolicy(config_lib.Configurable):
  """Base of the rules that end trials; likewise."""


class CrossStepMetricAggregator(config_lib.Configurable):
  """Base of what makes one value of those of several steps; likewise."""


class RandomSearch(BaseAlgorithm):
  """Random values, `--search=random`.

  Attributes:
    seed: of the values; None for that of `--tune_seed`.
  """

  seed: int | None = None


class Sweeping(BaseAlgorithm):
  """All combinations, `--search=grid`."""


class RegularizedEvolution(BaseAlgorithm):
  """Mutations of good trials, `--search=evolution`.

  Attributes:
    mutator: not supported: a child has another value of one parameter.
    population_size: see `records.Evolution`.
    tournament_size: see `records.Evolution`.
    seed: of the values; None for that of `--tune_seed`.
  """

  mutator: Any = None
  population_size: int = 100
  tournament_size: int = 10
  seed: int | None = None


class SingleObjective(BaseReward):
  """The value of a metric.

  Attributes:
    metric: the metric.
    goal: 'maximize' or 'minimize'.
    reward_for_nan: not supported: trials whose metric is NaN are the worst.
  """

  metric: Metric = config_lib.REQUIRED
  goal: str = MAXIMIZE
  reward_for_nan: float | None = None


class EarlyStoppingByValue(BaseEarlyStoppingPolicy):
  """Ends trials whose reward is below a limit.

  Attributes:
    step_values: pairs of a step and a limit. The first evaluation from the step
      on is compared with it. The reward is the metric, or for the goal
      'minimize' minus the metric.
    metric: not supported: the limit is for the study's metric.
    maximize: as for Pax: whether rewards below the limit end the trial; only
      True is supported.
  """

  step_values: list[tuple[int, float]] | None = None
  metric: Metric | None = None
  maximize: bool = True


class LastReportedMetricValues(CrossStepMetricAggregator):
  """The last value of the metric counts, `--tune_value=last`."""


class MetricsWithMaxValue(CrossStepMetricAggregator):
  """The largest value of the metric counts, `--tune_value=best`.

  Attributes:
    metric: not supported: it is that of the study.
  """

  metric: Metric | None = None


class MetricsWithMinValue(CrossStepMetricAggregator):
  """The smallest value of the metric counts, `--tune_value=best`.

  Attributes:
    metric: not supported: it is that of the study.
  """

  metric: Metric | None = None


MultiObjective = config_lib.refused(
  'automl.MultiObjective', 'use SingleObjective'
)
EarlyStoppingByRank = config_lib.refused(
  'automl.EarlyStoppingByRank',
  'use EarlyStoppingByValue, or --tune_stopping=median',
)
AverageMetricValues = config_lib.refused(
  'automl.AverageMetricValues',
  'use LastReportedMetricValues, MetricsWithMaxValue or MetricsWithMinValue',
)


@dataclasses.dataclass
class SearchHParams:
  """What an experiment's `search()` returns.

  Flags of the command line come first. Fields without an effect here are those
  of Pax's service: `docs/tuning.md` says what becomes of each.

  Attributes:
    search_algorithm: config of RandomSearch, Sweeping or RegularizedEvolution;
      None for `--search`.
    search_reward: config of SingleObjective; None for `--tune_metric`.
    early_stopping: config of EarlyStoppingByValue; None for `--tune_stopping`.
    cross_step_metric_aggregator: config of LastReportedMetricValues,
      MetricsWithMaxValue or MetricsWithMinValue; None for `--tune_value`.
    max_num_trials: the number of trials without `--num_trials`.
    errors_to_skip: a trial that fails is always skipped.
    prior_study_ids: not supported.
    add_prior_trials: not supported.
    add_experiment_config_to_metadata: each trial has its `config.txt`.
    treats_early_stopped_trials_as_done: the algorithm always gets their values.
    train_to_end: trials always train to their end.
    enable_dataset_tuning: class attributes and `--tune` reach datasets anyway.
    enable_partitioner_tuning: not supported.
    enable_train_programs_tuning: not supported.
    vizier_service_endpoint: not supported.
  """

  search_algorithm: Config | None = None
  search_reward: Config | None = None
  early_stopping: Config | None = None
  cross_step_metric_aggregator: Config | None = None
  max_num_trials: int = NO_LIMIT
  errors_to_skip: list[Any] | None = None
  prior_study_ids: list[int] | None = None
  add_prior_trials: bool = False
  add_experiment_config_to_metadata: bool = True
  treats_early_stopped_trials_as_done: bool = False
  train_to_end: bool = False
  enable_dataset_tuning: bool = False
  enable_partitioner_tuning: bool = False
  enable_train_programs_tuning: bool = False
  vizier_service_endpoint: str | None = None


def hyperparameter_tuning(
  metric: Metric,
  max_num_trials: int = 100,
  goal: str = MAXIMIZE,
  *,
  reward_for_nan: float | None = None,
  **fields: Any,
) -> SearchHParams:
  """Returns the settings of a search through all combinations.

  Args:
    metric: the metric to optimize.
    max_num_trials: the number of trials at most.
    goal: 'maximize' or 'minimize'.
    reward_for_nan: see `SingleObjective`.
    **fields: of `SearchHParams`.
  """
  return SearchHParams(
    search_algorithm=Sweeping.config(),
    search_reward=SingleObjective.config(
      metric=metric, goal=goal, reward_for_nan=reward_for_nan
    ),
    max_num_trials=max_num_trials,
    treats_early_stopped_trials_as_done=True,
    **fields,
  )


def neural_architecture_search(
  metrics: Metric | Sequence[Metric],
  cost_objective: float | None = None,
  reward_type: str = 'tunas',
  exponent: float = -0.07,
  max_num_trials: int = 10_000,
  *,
  reward_for_nan: float | None = None,
  **fields: Any,
) -> SearchHParams:
  """Returns the settings of a search by regularized evolution.

  Args:
    metrics: the metric to maximize.
    cost_objective: not supported, since it needs a second metric.
    reward_type: has no effect without one.
    exponent: likewise.
    max_num_trials: the number of trials at most.
    reward_for_nan: see `SingleObjective`.
    **fields: of `SearchHParams`.

  Raises:
    UserError: there are several metrics.
  """
  del reward_type, exponent
  found = [metrics] if isinstance(metrics, Metric) else list(metrics)
  if len(found) != 1 or cost_objective is not None:
    raise _unsupported(
      'neural_architecture_search of several metrics', 'use one Metric'
    )
  return SearchHParams(
    search_algorithm=RegularizedEvolution.config(),
    search_reward=SingleObjective.config(
      metric=found[0], reward_for_nan=reward_for_nan
    ),
    max_num_trials=max_num_trials,
    **fields,
  )


class EarlyStoppingError(BaseException):
  """Raised by code of a trial that is not worth training: the trial fails.

  Attributes:
    skip: True.
    skip_reason: the reason, for the trial's output.
    step: None, as are `reward`, `metrics` and `checkpoint`, which are those of
      a trial that ends with a value.
  """

  def __init__(
    self,
    skip: bool = True,
    skip_reason: str | None = None,
    step: int | None = None,
    reward: float | None = None,
    metrics: dict[str, float] | None = None,
    checkpoint_path: str | None = None,
  ):
    """Makes the error.

    Args:
      skip: whether the trial has no value; only True is supported.
      skip_reason: the reason.
      step: not supported, as the other arguments.
      reward: likewise.
      metrics: likewise.
      checkpoint_path: likewise.

    Raises:
      UserError: an argument is not supported.
    """
    given = step, reward, metrics, checkpoint_path
    if not skip or any(one is not None for one in given):
      raise _unsupported(
        'EarlyStoppingError of a trial with a value',
        'early_stopping_fn of the task ends a trial, whose value is that of its'
        ' metrics',
      )
    super().__init__(f'the trial is skipped: {skip_reason}')
    self.skip, self.skip_reason = skip, skip_reason
    self.step = self.reward = self.metrics = self.checkpoint = None


def parameter_sweep(
  combinations: Sequence[tuple[Any, ...]] | None = None,
  *,
  metric: Metric | None = None,
  goal: str = MAXIMIZE,
  **fields: Any,
) -> Callable[[type], type]:
  """Returns a decorator of an experiment, each trial of which is a row.

  Args:
    combinations: a row with names of class attributes, then one row with their
      values for each trial. None for all combinations of the attributes that
      are search spaces of PyGlove.
    metric: the metric; None for `--tune_metric`.
    goal: 'maximize' or 'minimize'.
    **fields: of `SearchHParams`.

  Raises:
    UserError: the rows are not valid for the class.
  """
  reward = (
    None if metric is None else SingleObjective.config(metric=metric, goal=goal)
  )
  rows = None if combinations is None else list(combinations)

  def decorate(cls: type) -> type:
    if rows is not None:
      _check_rows(cls, rows)

    def search(self) -> SearchHParams:
      del self
      return SearchHParams(
        search_algorithm=Sweeping.config(),
        search_reward=reward,
        **{'train_to_end': True, **fields},
      )

    members = {'search': search, SWEEP_ATTRIBUTE: rows, '__doc__': cls.__doc__}
    made = type(cls)(cls.__name__, (cls,), members)
    made.__module__, made.__qualname__ = cls.__module__, cls.__qualname__
    return made

  return decorate


def _check_rows(cls: type, rows: Sequence[tuple[Any, ...]]):
  where = f'parameter_sweep of {cls.__name__}'
  lengths = {len(row) if isinstance(row, tuple) else 0 for row in rows}
  if len(rows) < 2 or len(lengths) != 1 or 0 in lengths:
    raise config_lib.InvalidConfigError(
      f'{where}: expected a tuple of names, then tuples of as many values'
    )
  for name in rows[0]:
    if not isinstance(name, str) or not hasattr(cls, name):
      known = [one for one in dir(cls) if not one.startswith('_')]
      raise config_lib.InvalidConfigError(
        f'{where}: unknown class attribute {name!r}'
        + errors.did_you_mean(str(name), known)
      )


def _split(kind: str, dataset_name: str | None) -> str:
  return kind if dataset_name is None else f'{kind}_{dataset_name}'


def _unsupported(name: str, instead: str) -> errors.UserError:
  return errors.UserError(f'automl: {name} is not supported: {instead}')
