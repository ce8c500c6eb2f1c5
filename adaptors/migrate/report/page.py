"""The report as a self-contained HTML page.

Its Content-Security-Policy allows only its own style and script, by hash, so
that text from an experiment cannot run.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence

from adaptors.migrate.findings import (
  NOT_IN_MEMORY,
  NOT_TRACED,
  Experiment,
  Layer,
  Outcome,
  Status,
  Task,
  by_priority,
)
from adaptors.migrate.report import page_style, terminal
from adaptors.translate.view import Issue
from pax_compat.tools.markup import Html, joined, tag

_TITLE = 'Which of your Lingvo experiments run'
# The details are open on a page with at most this many experiments.
_OPEN_UP_TO = 1


def page(experiments: Sequence[Experiment]) -> str:
  """Returns the page, most urgent experiments first."""
  ordered = by_priority(list(experiments))
  is_open = len(ordered) <= _OPEN_UP_TO
  body = tag(
    'body',
    tag('h1', _TITLE),
    tag('p', terminal.summary(ordered), class_='soft'),
    _tools(ordered),
    _heads(),
    tag('main', *(_experiment(e, is_open) for e in ordered)),
    tag('p', 'Nothing matches.', id='none', class_='none soft', hidden=True),
    tag('script', page_style.SCRIPT),
  )
  return f'<!DOCTYPE html>\n{tag("html", _head(), body, lang="en")}\n'


def _head() -> Html:
  policy = (
    f"default-src 'none'; style-src {_hash(page_style.STYLE)};"
    f' script-src {_hash(page_style.SCRIPT)}'
  )
  return tag(
    'head',
    tag('meta', charset='utf-8'),
    tag('meta', http_equiv='Content-Security-Policy', content=policy),
    tag('meta', name='viewport', content='width=device-width, initial-scale=1'),
    tag('title', _TITLE),
    tag('style', page_style.STYLE),
  )


def _hash(text: str) -> str:
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


def _tools(experiments: Sequence[Experiment]) -> Html:
  buttons = (
    tag(
      'button',
      f'{status} {sum(e.status is status for e in experiments)}',
      type='button',
      data_status=str(status),
      aria_pressed='false',
    )
    for status in sorted(Status, key=lambda s: s.urgency)
    if any(e.status is status for e in experiments)
  )
  return tag(
    'div',
    tag(
      'input',
      id='search',
      type='search',
      placeholder='Search: names, classes, fields, reasons',
      aria_label='Search',
    ),
    *buttons,
    tag('button', 'Open or close all', type='button', id='open'),
    tag('span', id='shown', class_='soft', aria_live='polite'),
    class_='tools',
  )


def _heads() -> Html:
  return tag(
    'div',
    tag('span', 'experiment, and next step'),
    tag('span', 'runs'),
    tag('span', 'parameters', class_='number'),
    tag('span', 'per device', class_='number'),
    class_='heads soft',
    aria_hidden='true',
  )


def _class_of(status: Status) -> str:
  return str(status).partition(' ')[0]


def _experiment(e: Experiment, is_open: bool) -> Html:
  row = tag(
    'summary',
    tag('span', e.name, class_='name'),
    tag('span', str(e.status), class_=f'badge {_class_of(e.status)}'),
    tag('span', terminal.format_count(e.parameters), class_='number'),
    tag('span', terminal.format_size(e.bytes_per_device), class_='number'),
    tag('span', e.next_step, class_='next soft'),
  )
  body = tag(
    'div',
    _section('What is wrong', tag('pre', e.problem)) if e.problem else None,
    tag('pre', e.command) if e.command else None,
    *(_task(task) for task in e.tasks),
    _inputs(e),
    _section('Schedule', _list(e.schedule)) if e.schedule else None,
    _section('Trial run', tag('p', terminal.format_trial(e.trial)))
    if e.trial
    else None,
    class_='body',
  )
  return tag(
    'details',
    row,
    body,
    class_='experiment',
    data_status=str(e.status),
    open=is_open,
  )


def _section(title: str, *children: Html | None) -> Html:
  return joined(tag('h2', title), *children)


def _list(texts: Iterable[str]) -> Html:
  return tag('ul', *(tag('li', text) for text in texts))


def _task(task: Task) -> Html:
  title = f'Task {task.name}'.rstrip()
  return joined(
    _section(
      title,
      tag(
        'p',
        tag('code', task.class_path),
        ' ',
        tag('span', str(task.status), class_=f'badge {_class_of(task.status)}'),
      ),
    ),
    _section('Why it is not native', _issues(task.issues))
    if task.issues
    else None,
    _section('What would make it native', _list(task.advice))
    if task.advice
    else None,
    _sketch(task.sketch),
    _layers(task.layers),
    _memory(task),
    _outcome('Checkpoints', task.checkpoints),
    _outcome('Traced steps', task.trace or NOT_TRACED),
    _section('Notes', _list(task.notes)) if task.notes else None,
  )


def _issues(issues: Sequence[Issue]) -> Html:
  return _table(
    ('where', 'class', 'value', 'reason'),
    (
      (tag('code', i.path), tag('code', i.class_path), i.value, i.message)
      for i in issues
    ),
  )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
  body = (
    tag(
      'tr',
      *(
        tag('td', cell, data_head=head)
        for head, cell in zip(heads, row, strict=True)
      ),
    )
    for row in rows
  )
  return tag(
    'div',
    tag(
      'table',
      tag('thead', tag('tr', *(tag('th', head) for head in heads))),
      tag('tbody', *body),
      class_='stacked',
    ),
    class_='scroll',
  )


def _sketch(source: str) -> Html | None:
  if not source:
    return None
  return tag(
    'details',
    tag('summary', 'A translator to start from'),
    tag('pre', source),
    class_='sketch',
  )


def _layers(layers: Layer | None) -> Html | None:
  if layers is None:
    return None
  legend = tag(
    'p',
    tag('span', 'native', class_='badge native'),
    ' has a translation to JAX, ',
    tag('span', 'bridged', class_='badge bridged'),
    ' does not.',
    class_='soft',
  )
  tree = tag('ul', _layer(layers, is_open=True), class_='tree')
  return _section('Layers', legend, tree)


def _layer(layer: Layer, *, is_open: bool = False) -> Html:
  status = Status.NATIVE if layer.is_native else Status.BRIDGED
  line = joined(
    tag('span', layer.name, class_=f'badge {status}', title=str(status)),
    ' ',
    tag('code', layer.class_path) if layer.class_path else None,
    tag('span', f' {terminal.format_count(layer.parameters)}', class_='soft'),
    tag('span', f' \u2192 {layer.becomes}', class_='soft')
    if layer.becomes
    else None,
  )
  items = (tag('li', _reason(issue)) for issue in layer.issues)
  reasons = tag('ul', *items, class_='reasons')
  if not layer.children:
    return tag('li', tag('div', line, class_='leaf'), reasons)
  # Layers that are not native are open.
  inner = (
    _layer(child, is_open=not child.is_native) for child in layer.children
  )
  return tag(
    'li',
    tag(
      'details', tag('summary', line), reasons, tag('ul', *inner), open=is_open
    ),
  )


def _reason(issue: Issue) -> str:
  return f'{issue.field}: {issue.message}' if issue.field else issue.message


def _memory(task: Task) -> Html | None:
  if task.memory is None:
    problem = task.memory_problem or task.misfit
    return _section('Memory', tag('p', problem)) if problem else None
  return _section(
    'Memory of training',
    tag('p', f'{"; ".join(terminal.format_memory(task.memory))}.'),
    tag('p', f'Not included: {NOT_IN_MEMORY}.', class_='soft'),
  )


def _outcome(title: str, outcome: Outcome | None) -> Html | None:
  if outcome is None:
    return None
  kind = 'p' if outcome.works else 'pre'
  return _section(title, tag(kind, outcome.text))


def _inputs(e: Experiment) -> Html | None:
  if e.inputs_problem:
    return _section('Inputs', tag('pre', e.inputs_problem))
  if not e.inputs:
    return None
  rows = (
    (
      one.dataset,
      joined(tag('code', one.class_path), tag('div', one.kind)),
      joined(
        tag('div', one.driven),
        tag('div', terminal.format_batches(one.shapes), class_='soft'),
      ),
      _list(one.remarks) if one.remarks else '',
    )
    for one in e.inputs
  )
  return _section(
    'Inputs', _table(('dataset', 'generator', 'driven by', 'remarks'), rows)
  )
