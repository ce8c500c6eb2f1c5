"""Trials of several experiments, which run one after the other.

`sub_experiments()` of an experiment names them. Each has a folder of its name
within that of the trial. A metric `<split>/<name>:<id>` is that of one of them;
without `:<id>`, an aggregator makes one value of all that have it.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

from pax_compat import base_experiment, errors
from pax_compat.tuning import automl, metric_values, records

_NAME = re.compile(r'[\w.-]+')
_AGGREGATORS: Mapping[str, Callable[[Sequence[float]], float]] = {
  automl.MetricAggregator.MAX.value: max,
  automl.MetricAggregator.MIN.value: min,
  automl.MetricAggregator.SUM.value: sum,
  automl.MetricAggregator.AVERAGE.value: lambda xs: sum(xs) / len(xs),
}


@dataclasses.dataclass(frozen=True)
class Measured:
  """The value of a trial.

  Attributes:
    value: of the metric.
    step: the last one with the metric.
  """

  value: float
  step: int


def names(experiment: base_experiment.BaseExperiment) -> tuple[str, ...]:
  """Returns the names of the experiments of a trial; none if it is one run.

  Raises:
    UserError: a name cannot be that of a folder.
  """
  cls = type(experiment)
  if cls.sub_experiments is base_experiment.BaseExperiment.sub_experiments:
    return ()
  found = tuple(experiment.sub_experiments())
  if found in ((), ('',)):
    return ()
  for name in found:
    if not _NAME.fullmatch(name) or set(name) == {'.'}:
      raise errors.UserError(
        f'{cls.__name__}.sub_experiments() has the name {name!r}; expected'
        ' letters, digits, _, - and .'
      )
  return found


def split_metric(
  metric: str, known: Sequence[str]
) -> tuple[str, Sequence[str]]:
  """Returns a metric without `:<id>`, and the experiments that it is of.

  Args:
    metric: with or without `:<id>`.
    known: the names of the experiments.

  Raises:
    UserError: the experiment is unknown.
  """
  if not known:
    return metric, ()
  base, colon, name = metric.rpartition(':')
  if not colon:
    return metric, known
  if name not in known:
    raise errors.UserError(
      f'the metric {metric} is of the experiment {name!r}; expected one of'
      f' {", ".join(known)}' + errors.did_you_mean(name, known)
    )
  return base, (name,)


def check(settings: records.Settings):
  """Raises a UserError if the settings do not fit the experiments."""
  split_metric(settings.metric, settings.sub_experiments)
  if settings.sub_experiments and settings.stopping.rule != 'none':
    raise errors.UserError(
      f'--tune_stopping={settings.stopping.rule} is not supported with'
      ' sub_experiments(), which run one after the other'
    )
  if settings.aggregator and not settings.sub_experiments:
    raise errors.UserError(
      'automl: aggregator of a metric is not supported without'
      ' sub_experiments(): name one dataset'
    )


def measured(folder: pathlib.Path, settings: records.Settings) -> Measured:
  """Returns the value of a trial that has made its steps.

  Args:
    folder: of the trial.
    settings: of the study.

  Raises:
    UserError: the metric is unknown, or is that of several experiments.
  """
  metric, chosen = split_metric(settings.metric, settings.sub_experiments)
  values, step, known = {}, 0, {}
  for name in chosen or ('',):
    known |= (mine := metric_values.read(folder / name))
    key = metric_values.find(metric, mine)
    if key is not None:
      series = sorted(mine[key].items())
      values[name] = metric_values.of_trial(
        series, settings.goal, settings.value
      )
      step = series[-1][0]
  if not values:
    raise metric_values.missing(metric, known)
  if len(values) > 1 and not settings.aggregator:
    raise errors.UserError(
      f'the metric {metric} may be any of'
      f' {", ".join(f"{metric}:{name}" for name in values)}; expected one of'
      ' them, or an aggregator of the metric in search()'
    )
  if len(values) == 1:
    return Measured(*values.values(), step)
  combine = _AGGREGATORS[settings.aggregator]
  return Measured(combine(list(values.values())), step)
