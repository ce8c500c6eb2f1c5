"""The report as lines of a terminal."""

from collections.abc import Iterator, Sequence

from adaptors.migrate.findings import (
  NOT_IN_MEMORY,
  Experiment,
  Layer,
  Status,
  Task,
  by_what_to_do,
)
from adaptors.migrate.report import wording

_HEADS = ('experiment', 'runs', 'parameters', 'per device', 'what to do next')
_GAP = '  '


def table(experiments: Sequence[Experiment], width: int) -> str:
  """Returns a row for each experiment, sorted by what to do next.

  Args:
    experiments: what was found out.
    width: of the terminal; the last column is cut to it.
  """
  rows = [_HEADS]
  for e in by_what_to_do(list(experiments)):
    rows.append(
      (
        e.name,
        str(e.status),
        wording.count(e.parameters),
        wording.size(e.bytes_per_device),
        e.next_step,
      )
    )
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = []
  for row in rows:
    cells = [
      cell.rjust(n) if i in (2, 3) else cell.ljust(n)
      for i, (cell, n) in enumerate(zip(row, widths, strict=True))
    ]
    lines.append(_cut(_GAP.join(cells).rstrip(), width))
  return '\n'.join([*lines, '', summary(experiments)])


def summary(experiments: Sequence[Experiment]) -> str:
  """Returns how many experiments there are of each status."""
  counts = {
    status: sum(e.status is status for e in experiments) for status in Status
  }
  told = ', '.join(f'{n} {status}' for status, n in counts.items() if n)
  return f'{len(experiments)} experiment(s): {told}'


def _cut(line: str, width: int) -> str:
  return line if len(line) <= width else f'{line[: max(0, width - 3)]}...'


def details(experiment: Experiment) -> str:
  """Returns all that was found out about an experiment."""
  return '\n'.join(_lines(experiment))


def _lines(e: Experiment) -> Iterator[str]:
  yield f'{e.name}: {e.status}'
  if e.problem:
    yield from _block('problem', e.problem.splitlines())
  yield f'  next: {e.next_step}'
  if e.command:
    yield f'  {e.command}'
  for task in e.tasks:
    yield from _task(task)
  for data in e.inputs:
    yield f'  input {data.dataset}: {data.class_path}, {data.kind}'
    yield f'    {data.driven}'
    if data.shapes:
      yield f'    batches of {wording.shapes(data.shapes)}'
    yield from (f'    {remark}' for remark in data.remarks)
  if e.inputs_problem:
    yield f'  inputs: {e.inputs_problem}'
  yield from _block('schedule', e.schedule)


def _task(task: Task) -> Iterator[str]:
  yield f'  task {task.name}'.rstrip() + f': {task.class_path}, {task.status}'
  yield from _indented(_block('not native, for', map(str, task.issues)))
  yield from _indented(_block('what would make it native', task.advice))
  if task.layers is not None:
    yield '    layers (+ has a translation, - has none):'
    yield from _layer(task.layers, '      ')
  yield from _indented(_memory(task))
  for name in ('checkpoints', 'trace'):
    outcome = getattr(task, name)
    if outcome is not None:
      verdict = 'NO: ' if outcome.works is False else ''
      yield f'    {name}: {verdict}{outcome.text}'
  yield from _indented(_block('notes', task.notes))


def _memory(task: Task) -> Iterator[str]:
  if task.memory is None:
    if task.memory_problem or task.misfit:
      yield f'  memory: {task.memory_problem or task.misfit}'
    return
  m = task.memory
  yield (
    f'  memory: {wording.size(m.per_device)} on each device'
    f' ({wording.mesh(m.mesh)})'
  )
  yield (
    f'    {wording.size(m.total)} in all: weights {wording.size(m.weights)},'
    f' not trained {wording.size(m.others)},'
    f' optimizer {wording.size(m.optimizer)},'
    f' gradients {wording.size(m.gradients)}'
  )
  yield f'    not in it: {NOT_IN_MEMORY}'


def _layer(layer: Layer, indent: str) -> Iterator[str]:
  sign = '+' if layer.is_native else '-'
  yield (
    f'{indent}{sign} {layer.name} {layer.class_path}'.rstrip()
    + f' {wording.count(layer.parameters)}'
  )
  for child in layer.children:
    yield from _layer(child, indent + '  ')


def _block(title: str, lines) -> Iterator[str]:
  lines = list(lines)
  if lines:
    yield f'  {title}:'
    yield from (f'    {line}' for line in lines)


def _indented(lines) -> Iterator[str]:
  return (f'  {line}' for line in lines)
