"""A report of runs as an HTML page: one file, no network."""

import collections
import datetime
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from pax_compat.configs import config_text
from pax_compat.metrics import time_use
from pax_compat.runs import run_log
from pax_compat.tools import markup
from pax_compat.tools.markup import Html, joined, tag
from pax_compat.tools.run_report import charts, curves, records
from pax_compat.trainer.reporting import start_lines

_TITLES = {'model': 'Metrics', 'throughput': 'Throughput and input'}
_MAX_LOG_LINES = 300
# More differences of configs are shown when asked for.
_MAX_DIFFERENCES = 40
_MAX_CHARACTERS = 600
_STEPS = 'task.train.num_train_steps'
_STYLE = Html("""
nav a { margin-right: 1rem; }
th { font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.mono, pre { font: .85em/1.45 ui-monospace, monospace; }
td .mono { overflow-wrap: anywhere; }
pre { overflow: auto; max-height: 40rem; }
.charts { display: grid; gap: .5rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(34rem, 100%), 1fr)); }
.chart { min-height: 320px; min-width: 0; }
.level-W { border-left: 4px solid #e69f00; padding-left: .6rem; }
.level-E, .level-F { border-left: 4px solid #d33; padding-left: .6rem; }
details { margin: .6rem 0; } summary { cursor: pointer; }
""")


def page(runs: Sequence[records.Run]) -> str:
  """Returns the page.

  Args:
    runs: to report; curves of several are drawn over each other.
  """
  title = 'Report of ' + ', '.join(run.label for run in runs)
  sections = [
    ('Runs', _overview(runs)),
    *_metrics(runs),
    ('Config', _configs(runs)),
    ('Parameters', joined(*(_parameters(run) for run in runs))),
    ('Decoded examples', joined(*(_samples(run) for run in runs))),
    ('Warnings', joined(*(_log(run) for run in runs))),
  ]
  links = [tag('a', name, href=f'#{_id(name)}') for name, _ in sections]
  return markup.page(
    title,
    _STYLE,
    tag('nav', *links),
    tag('p', 'Curves are by train step.', class_='soft'),
    *(
      tag('section', tag('h2', name, id=_id(name)), content)
      for name, content in sections
    ),
    charts.scripts(),
  )


def _id(name: str) -> str:
  return name.lower().replace(' ', '-')


def _details(summary: str, content: Html, *, is_open: bool = False) -> Html:
  return tag('details', tag('summary', summary), content, open=is_open)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
  """Returns a table; numbers are at the right, and cells may be `Html`."""
  body = [tag('tr', *map(_cell, row)) for row in rows]
  head = tag('tr', *(tag('th', name) for name in heads))
  return tag('div', tag('table', head, *body), class_='scroll')


def _cell(value: Any) -> Html:
  if isinstance(value, str):
    return tag('td', value)
  return tag('td', f'{value:,}', class_='number')


def _mono(text: str) -> Html:
  return tag('span', text, class_='mono')


def _overview(runs: Sequence[records.Run]) -> Html:
  """Returns the table of all runs: a column for each."""
  facts = [_facts(run) for run in runs]
  names = list(dict.fromkeys(name for one in facts for name in one))
  rows = [[name, *(one.get(name, '') for one in facts)] for name in names]
  return _table(['', *(run.label for run in runs)], rows)


def _facts(run: records.Run) -> dict[str, str]:
  """Returns what the overview has of a run, by name."""
  last = max(curve.steps[-1] for curve in run.curves.values())
  planned = config_text.by_path(run.config).get(_STEPS)
  facts = {
    'experiment': run.experiment,
    'folder': run.folder,
    'started': run.created,
    'pax-compat': run.version,
    'newest step': f'{last:,}' + (f' of {int(planned):,}' if planned else ''),
    'from the first metric to the last': _duration(run),
  }
  for split in curves.splits_of([run], curves.LOSS):
    facts[f'loss of {split}'] = _newest_and_best(run.curves[split, curves.LOSS])
  for name, title in curves.THROUGHPUT.items():
    values = run.curves.get((curves.TRAIN, name))
    finite = [v for v in values.values if math.isfinite(v)] if values else []
    if finite:
      facts[f'{title}, median'] = f'{statistics.median(finite):.4g}'
  if shares := _time_use(run):
    facts['time since the first start'] = shares
  if run.parameters:
    facts['parameters'] = f'{sum(one.count for one in run.parameters):,}'
  if run.mesh:
    facts['mesh'] = start_lines.mesh_text(run.mesh)
  return facts


def _time_use(run: records.Run) -> str:
  """Returns what the time of a run was used for, by its newest metrics."""
  fractions = {
    name.removeprefix(f'{time_use.TIME_USE}/'): curve.values[-1]
    for (split, name), curve in run.curves.items()
    if split == curves.TRAIN and name.startswith(f'{time_use.TIME_USE}/')
  }
  return time_use.percentages(fractions)


def _newest_and_best(curve: records.Curve) -> str:
  text = f'{curve.values[-1]:.5g}'
  finite = [i for i, v in enumerate(curve.values) if math.isfinite(v)]
  if len(curve.steps) > 1 and finite:
    best = min(finite, key=curve.values.__getitem__)
    lowest, step = curve.values[best], curve.steps[best]
    text += f' (lowest {lowest:.5g} at step {step:,})'
  return text


def _duration(run: records.Run) -> str:
  times = [time for curve in run.curves.values() for time in curve.times]
  seconds = round(max(times) - min(times))
  return str(datetime.timedelta(seconds=seconds))


def _metrics(runs: Sequence[records.Run]) -> list[tuple[str, Html]]:
  """Returns the sections of charts."""
  sections, others = [], []
  for group, names in curves.metric_groups(runs).items():
    equal = curves.equal_to_loss(runs, names)
    drawn = charts.of_group(runs, [one for one in names if one not in equal])
    if equal:
      note = f'Equal to the loss: {", ".join(equal)}.'
      drawn = joined(drawn, tag('p', note, class_='soft'))
    if group in _TITLES:
      sections.append((_TITLES[group], drawn))
    else:
      others.append(_details(f'{group} ({len(names)})', drawn))
  if others:
    sections.append(('Other metrics', joined(*others)))
  return sections


def _configs(runs: Sequence[records.Run]) -> Html:
  """Returns the fields in which the configs differ, and all configs."""
  parts = []
  if len(runs) > 1:
    found = [config_text.by_path(run.config) for run in runs]
    paths = dict.fromkeys(path for fields in found for path in fields)
    rows = []
    for path in paths:
      values = [fields.get(path, '(absent)') for fields in found]
      if len(set(values)) > 1:
        short = [records.shortened(v, _MAX_CHARACTERS) for v in values]
        rows.append([_mono(path), *map(_mono, short)])
    table = _table(['field', *(run.label for run in runs)], rows)
    few = len(rows) <= _MAX_DIFFERENCES
    parts.append(
      _details(f'fields that differ: {len(rows)}', table, is_open=few)
    )
  for run in runs:
    text = run.config or 'config.txt is missing.'
    parts.append(_details(f'config of {run.label}', tag('pre', text)))
  return joined(*parts)


def _parameters(run: records.Run) -> Html:
  """Returns the table of the variables of a run."""
  if not run.parameters:
    return tag('p', f'{run.label} has no parameters.txt.', class_='soft')
  heads = ['path', 'shape', 'elements', 'dtype', 'sharding', 'bytes']
  rows = [
    [
      _mono(one.path),
      'x'.join(map(str, one.shape)) or 'scalar',
      one.count,
      one.dtype,
      _sharding(one),
      one.bytes,
      *([one.bytes_per_device(run.mesh)] if run.mesh else ()),
    ]
    for one in run.parameters
  ]
  if run.mesh:
    heads.append('bytes per device')
  sums = [sum(row[i] for row in rows) for i in range(5, len(heads))]
  total = sum(row[2] for row in rows)
  texts = [start_lines.short_bytes(one) for one in sums]
  summary = f'{run.label}: {total:,} parameters, {texts[0]}'
  if run.mesh:
    mesh = start_lines.mesh_text(run.mesh)
    summary += f'; {texts[1]} per device of the mesh {mesh}'
  rows.append(['sum', '', total, '', '', *sums])
  return _details(summary, _table(heads, rows))


def _sharding(parameter: records.Parameter) -> str:
  if not any(parameter.sharding):
    return 'replicated'
  return ', '.join(' and '.join(axes) or '-' for axes in parameter.sharding)


def _samples(run: records.Run) -> Html:
  """Returns the first decoded examples of a run."""
  if not run.samples:
    text = f'{run.label} has decoded no examples.'
    return tag('p', text, class_='soft')
  parts = []
  for one in run.samples:
    parts.append(tag('h3', f'{run.label}: {one.dataset} at step {one.step:,}'))
    parts.append(_table(['key', 'value'], map(_sample, one.examples)))
  return joined(*parts)


def _sample(example: dict[str, Any]) -> list[str]:
  key, value = example.get('key'), example.get('value')
  if not isinstance(value, dict):
    return [str(key), _mono(records.shortened(value, _MAX_CHARACTERS))]
  fields = [
    [name, _mono(records.shortened(item, _MAX_CHARACTERS))]
    for name, item in value.items()
  ]
  return [str(key), _table([], fields)]


def _log(run: records.Run) -> Html:
  """Returns the warnings and errors of a run, and the end of its logs."""
  if not run.logs:
    text = f'{run.label} has no {run_log.FILE}.'
    return tag('p', text, class_='soft')
  parts = []
  for name, entries in run.logs.items():
    chosen = [one for one in entries if one.level in 'WEF']
    found = f'{len(chosen)} warnings and errors' if chosen else 'no warnings'
    parts.append(tag('h3', f'{run.label}, {name}: {found}'))
    if chosen:
      parts.append(_table(['time', 'from', 'message'], _merged(chosen)))
    lines = [
      f'{one.time} {one.level} {one.source}] {one.message}'
      for one in entries[-_MAX_LOG_LINES:]
    ]
    last = f'last {len(lines):,} of {len(entries):,} entries of {name}'
    parts.append(_details(last, tag('pre', '\n'.join(lines))))
  return joined(*parts)


def _merged(entries: Sequence[run_log.Entry]) -> list[list[str]]:
  """Returns a row for each message, and how often it was logged."""
  counts = collections.Counter((one.source, one.message) for one in entries)
  rows = []
  for one in entries:
    if count := counts.pop((one.source, one.message), 0):
      times = f' ({count} times)' if count > 1 else ''
      message = records.shortened(one.message, _MAX_CHARACTERS) + times
      marked = tag('div', message, class_=f'level-{one.level}')
      rows.append([one.time, _mono(one.source), marked])
  return rows
