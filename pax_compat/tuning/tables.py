"""The table at the end of a study."""

from collections.abc import Mapping, Sequence
from typing import Any

from pax_compat.tuning import metric_values, records

_UNKNOWN = '-'


def text(
  trials: Mapping[int, records.Trial],
  names: Sequence[str],
  settings: records.Settings,
) -> str:
  """Returns a table of trials, the best one first.

  Args:
    trials: by number.
    names: of the parameters.
    settings: of the study.
  """
  head = ['trial', *short(names), settings.metric, 'steps', 'status']
  rows = [
    [
      str(trial.number),
      *(_shown(trial.values[name]) for name in names),
      _shown(trial.metric),
      _shown(trial.step),
      trial.status,
    ]
    for trial in ordered(trials, settings.goal)
  ]
  widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.ljust(w) for cell, w in zip(row, widths, strict=True)
    ).rstrip()
    for row in (head, *rows)
  )


def ordered(
  trials: Mapping[int, records.Trial], goal: str
) -> list[records.Trial]:
  """Returns trials sorted by their metric, those without at the end."""
  found = [t for t in trials.values() if t.metric is not None]
  found.sort(key=lambda t: _key(t.metric, goal))
  return found + [t for t in trials.values() if t.metric is None]


def short(names: Sequence[str]) -> list[str]:
  """Returns the shortest ends of paths that differ.

  >>> short(['task.train.learner.optimizer.learning_rate', 'task.model.dims'])
  ['learning_rate', 'dims']
  """
  parts = [name.split('.') for name in names]
  for count in range(1, max(map(len, parts), default=0) + 1):
    ends = ['.'.join(one[-count:]) for one in parts]
    if len(set(ends)) == len(ends):
      return ends
  return list(names)


def _key(value: Any, goal: str) -> tuple[bool, float]:
  is_nan = value != value
  if is_nan:
    return True, 0.0
  return False, value if goal == metric_values.MIN else -value


def _shown(value: Any) -> str:
  if value is None:
    return _UNKNOWN
  return f'{value:.6g}' if isinstance(value, float) else str(value)
