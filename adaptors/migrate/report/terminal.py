"""The report as text for a terminal, and the formats of its numbers."""

from collections.abc import Iterator, Sequence

from adaptors.migrate.findings import (
  NOT_IN_MEMORY,
  Experiment,
  Layer,
  Memory,
  Status,
  Task,
  by_priority,
)

# Up to this many shapes of batches are listed one by one.
_FEW = 4
_THOUSANDS = ('', 'K', 'M', 'B', 'T')
_BYTES = ('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')
_HEADS = ('experiment', 'runs', 'parameters', 'per device', 'next step')
_GAP = '  '


def table(experiments: Sequence[Experiment], width: int) -> str:
  """Returns a table with a row per experiment, most urgent first.

  Args:
    experiments: the findings.
    width: of the terminal; longer lines are truncated.
  """
  rows = [_HEADS]
  for e in by_priority(list(experiments)):
    rows.append(
      (
        e.name,
        str(e.status),
        format_count(e.parameters),
        format_size(e.bytes_per_device),
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
    lines.append(_truncate(_GAP.join(cells).rstrip(), width))
  return '\n'.join([*lines, '', summary(experiments)])


def summary(experiments: Sequence[Experiment]) -> str:
  """Returns the number of experiments of each status."""
  counts = {
    status: sum(e.status is status for e in experiments) for status in Status
  }
  by_status = ', '.join(f'{n} {status}' for status, n in counts.items() if n)
  return f'{len(experiments)} experiment(s): {by_status}'


def _truncate(line: str, width: int) -> str:
  return line if len(line) <= width else f'{line[: max(0, width - 3)]}...'


def details(experiment: Experiment) -> str:
  """Returns all findings about an experiment."""
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
      yield f'    {format_batches(data.shapes)}'
    yield from (f'    {remark}' for remark in data.remarks)
  if e.inputs_problem:
    yield f'  inputs: {e.inputs_problem}'
  yield from _block('schedule', e.schedule)


def _task(task: Task) -> Iterator[str]:
  yield f'  task {task.name}'.rstrip() + f': {task.class_path}, {task.status}'
  yield from _indented(_block('not native, because', map(str, task.issues)))
  yield from _indented(_block('to make it native', task.advice))
  if task.layers is not None:
    yield '    layers (+ has a translation, - does not):'
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
  per_device, total = format_memory(task.memory)
  yield f'  memory: {per_device}'
  yield f'    {total}'
  yield f'    not included: {NOT_IN_MEMORY}'


def _layer(layer: Layer, indent: str) -> Iterator[str]:
  sign = '+' if layer.is_native else '-'
  yield (
    f'{indent}{sign} {layer.name} {layer.class_path}'.rstrip()
    + f' {format_count(layer.parameters)}'
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


def format_count(number: int | None) -> str:
  """Returns a number in three digits; `?` for None.

  >>> format_count(1_780_000_000)
  '1.78B'
  """
  if number is None:
    return '?'
  return _scaled(number, 1000, _THOUSANDS, '')


def format_size(number: int | None) -> str:
  """Returns a number of bytes with its unit; `?` for None.

  >>> format_size(21_300_000_000)
  '19.8 GiB'
  """
  if number is None:
    return '?'
  return _scaled(number, 1024, _BYTES, ' ')


def _scaled(number: float, step: int, units: tuple[str, ...], gap: str) -> str:
  for unit in units:
    if abs(number) < step * 0.9995 or unit == units[-1]:
      break
    number /= step
  digits = (
    0 if unit == units[0] or number >= 99.95 else 1 if number >= 9.995 else 2
  )
  return f'{number:.{digits}f}{gap}{unit}'


def format_mesh(axes: dict[str, int]) -> str:
  """Returns a description of a mesh.

  >>> format_mesh({'data': 64, 'mdl': 32})
  '64 x 32 devices (data, mdl)'
  """
  sizes = ' x '.join(map(str, axes.values()))
  if all(n == 1 for n in axes.values()):
    return 'one device, or replicated on several'
  return f'{sizes} devices ({", ".join(axes)})'


def format_memory(m: Memory) -> tuple[str, str]:
  """Returns descriptions of the memory per device, and of the total."""
  return (
    f'{format_size(m.per_device)} on each device ({format_mesh(m.mesh)})',
    f'{format_size(m.total)} in total: weights {format_size(m.weights)},'
    f' non-trainable {format_size(m.others)},'
    f' optimizer {format_size(m.optimizer)},'
    f' gradients {format_size(m.gradients)}',
  )


def format_batches(batches: Sequence[tuple[int, int | None]]) -> str:
  """Returns a description of batches by (examples, length); '' for none.

  >>> format_batches([(8, 16), (4, None)])
  'batches of 8 x 16, 4 examples'
  """
  return f'batches of {_shapes(batches)}' if batches else ''


def _shapes(batches: Sequence[tuple[int, int | None]]) -> str:
  if len(batches) <= _FEW:
    return ', '.join(
      f'{rows} examples' if n is None else f'{rows} x {n}'
      for rows, n in batches
    )
  rows = [rows for rows, _ in batches]
  lengths = [n for _, n in batches if n is not None]
  examples = f'{min(rows)} to {max(rows)} examples'
  if not lengths:
    return examples
  return f'{examples} of {min(lengths)} to {max(lengths)}'
