"""The metric of a study, in the metrics of its trials.

A metric has the name `<split>/<name>`, as in `metrics.jsonl`: `eval_dev/loss`,
`train/loss`. The split `eval` or `decode` stands for the only dataset that has
the metric: `eval/loss`. Case does not matter.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

from pax_compat import errors
from pax_compat.runs import files

_FILE = 'metrics.jsonl'
MIN, MAX = 'min', 'max'
LAST, BEST = 'last', 'best'
_MEASURED = ('eval', 'decode')
# Evaluations of batches that are trained on, which are not of a dataset.
_OF_TRAINING = 'eval_train/'
# Values of a metric: (step, value), in ascending order of steps.
Series = Sequence[tuple[int, float]]


def read(folder: Any) -> dict[str, dict[int, float]]:
  """Returns the metrics of a run, by `<split>/<name>` and step."""
  path = folder / _FILE
  found: dict[str, dict[int, float]] = {}
  for line in path.read_text('utf-8').splitlines() if path.exists() else ():
    try:
      fields = files.parse_json(line)
      value = fields['value']
      value = float(fields['note'] if value is None else value)
      name = f'{fields["split"]}/{fields["name"]}'
      found.setdefault(name, {})[int(fields['step'])] = value
    except (ValueError, KeyError, TypeError):
      continue  # A line that is being written.
  return found


def series(folder: Any, metric: str) -> Series:
  """Returns the values of a metric of a run; none if it has none."""
  known = read(folder)
  name = find(metric, known)
  return sorted(known[name].items()) if name else []


def find(metric: str, known: Collection[str]) -> str | None:
  """Returns the known name that a metric refers to, None without one.

  Raises:
    UserError: it may be any of several.
  """
  split, _, name = metric.partition('/')
  wanted = metric.lower()
  matching = [one for one in known if one.lower() == wanted]
  if not matching and split in _MEASURED:
    matching = [
      one
      for one in known
      if one.lower().startswith(f'{split}_')
      and not one.startswith(_OF_TRAINING)
      and one.partition('/')[2].lower() == name.lower()
    ]
  if len(matching) > 1:
    raise errors.UserError(
      f'--tune_metric={metric} may be any of {", ".join(sorted(matching))}'
    )
  return matching[0] if matching else None


def missing(metric: str, known: Collection[str]) -> errors.UserError:
  """Returns the error for a metric that a run does not have."""
  measured = [one for one in known if one.startswith(_MEASURED)]
  others = [one for one in known if one not in measured]
  return errors.UserError(
    f'--tune_metric={metric}: the trials lack this metric'
    + (errors.did_you_mean(metric, known) or '.')
    + f' They have {", ".join(sorted(measured) + sorted(others))}'
  )


def is_measured(metric: str) -> bool:
  """Whether a metric is of evaluations or decodings, not of training."""
  return metric.partition('/')[0].partition('_')[0] in _MEASURED


def better(one: float, other: float, goal: str) -> bool:
  """Whether a value is better than another one. NaN is worse than any."""
  if math.isnan(one) or math.isnan(other):
    return math.isnan(other) and not math.isnan(one)
  return one < other if goal == MIN else one > other


def best(values: Series, goal: str) -> float:
  """Returns the best of values; NaN if there is none."""
  found = math.nan
  for _, value in values:
    if better(value, found, goal):
      found = value
  return found


def of_trial(values: Series, goal: str, kind: str) -> float | None:
  """Returns the value of a trial; None if it has none.

  Args:
    values: of the metric, by step.
    goal: MIN or MAX.
    kind: LAST for the last value, BEST for the best one.
  """
  if not values:
    return None
  return values[-1][1] if kind == LAST else best(values, goal)
