"""Which curves a report has, and how each looks."""

import dataclasses
import math
import re
from collections.abc import Sequence

from pax_compat.tools.run_report import records

TRAIN, LOSS = 'train', 'loss'
# Metrics of the trainer, not of the model, with their titles.
THROUGHPUT = {
  'steps_per_second': 'steps per second',
  'tokens_per_second': 'tokens per second',
  'mfu': 'MFU, the fraction of peak FLOPs used',
  'input_wait_fraction': 'fraction of time waiting for input',
}
# Okabe and Ito's colours, which colour-blind readers tell apart.
_COLOURS = (
  *('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'),
  '#000000',
)
# Lengths in pixels of dashes and gaps, of splits other than training.
_DASHES = ('6 4', '2 3', '8 3 2 3')
_COUNTS = re.compile(r'num_\w+')


@dataclasses.dataclass(frozen=True)
class Line:
  """A curve of a chart.

  Attributes:
    name: of the run and the split.
    steps: [n].
    values: [n].
    colour: of the run, or of the split if there is one run.
    dash: of the split, as in SVG; '' for a solid line.
  """

  name: str
  steps: list[int]
  values: list[float]
  colour: str
  dash: str


def of_metric(
  runs: Sequence[records.Run], metric: str, *, most: int
) -> list[Line]:
  """Returns the curves of a metric, of all runs and splits.

  Args:
    runs: of the report.
    metric: its name.
    most: number of points of a curve, see `thinned`.
  """
  splits = splits_of(runs, metric)
  lines = []
  for i, run in enumerate(runs):
    for j, split in enumerate(splits):
      if (curve := run.curves.get((split, metric))) is None:
        continue
      steps, values = thinned(curve.steps, curve.values, most)
      several = len(runs) > 1
      dash = _DASHES[(j - 1) % len(_DASHES)] if j and several else ''
      lines.append(
        Line(
          name=f'{run.label} {split}' if several else split,
          steps=steps,
          values=values,
          colour=_COLOURS[(i if several else j) % len(_COLOURS)],
          dash=dash,
        )
      )
  return lines


def splits_of(runs: Sequence[records.Run], metric: str) -> list[str]:
  """Returns the splits that have a metric, training first."""
  found = {
    split for run in runs for split, name in run.curves if name == metric
  }
  return sorted(found, key=lambda split: (split != TRAIN, split))


def equal_to_loss(
  runs: Sequence[records.Run], names: Sequence[str]
) -> list[str]:
  """Returns the metrics that have the values of the loss, in all runs."""

  def values(metric: str) -> dict:
    return {
      (run.label, split): (curve.steps, curve.values)
      for run in runs
      for (split, name), curve in run.curves.items()
      if name == metric
    }

  loss = values(LOSS)
  return [name for name in names if name != LOSS and values(name) == loss]


def metric_groups(runs: Sequence[records.Run]) -> dict[str, list[str]]:
  """Returns the names of metrics by group, those to look at first first.

  The groups are `model` (of the model, the loss first), `throughput`, one for
  each prefix such as `learning`, and `counts`.
  """
  names = {name for run in runs for _, name in run.curves}
  groups: dict[str, list[str]] = {
    'model': [],
    'throughput': [name for name in THROUGHPUT if name in names],
  }
  later = {}
  for name in sorted(names - set(THROUGHPUT)):
    prefix, slash, _ = name.partition('/')
    if slash:
      later.setdefault(prefix, []).append(name)
    elif _COUNTS.fullmatch(name):
      later.setdefault('counts', []).append(name)
    else:
      groups['model'].append(name)
  groups['model'].sort(key=lambda name: (name != LOSS, name))
  return {name: found for name, found in (groups | later).items() if found}


def thinned(
  steps: Sequence[int], values: Sequence[float], most: int
) -> tuple[list[int], list[float]]:
  """Returns points of a curve, with the extremes of those that it leaves out.

  Args:
    steps: [n].
    values: [n].
    most: if there are more points, about so many are returned: the lowest and
      the highest of each interval, those that are not finite, and both ends.
  """
  if len(steps) <= most:
    return list(steps), list(values)
  size = math.ceil(2 * len(steps) / most)
  kept = {0, len(steps) - 1}
  for start in range(0, len(steps), size):
    block = range(start, min(start + size, len(steps)))
    finite = [i for i in block if math.isfinite(values[i])]
    if len(finite) < len(block):
      kept.add(next(i for i in block if not math.isfinite(values[i])))
    if finite:
      kept |= {min(finite, key=values.__getitem__)}
      kept |= {max(finite, key=values.__getitem__)}
  chosen = sorted(kept)
  return [steps[i] for i in chosen], [values[i] for i in chosen]
