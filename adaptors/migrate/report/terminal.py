"""The report as text for a terminal, and the formats of its numbers."""

import textwrap
from collections.abc import Collection, Iterator, Sequence

from adaptors.migrate.findings import (
  NOT_IN_MEMORY,
  NOT_TRACED,
  Experiment,
  Layer,
  Memory,
  Status,
  Task,
  Trial,
  by_priority,
)

# Up to this many shapes of batches are listed one by one.
_FEW = 4
_THOUSANDS = ('', 'K', 'M', 'B', 'T')
_BYTES = ('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')
_HEADS = (
  'experiment',
  'runs',
  'traced',
  'parameters',
  'per device',
  'next step',
)
_TRIAL_HEADS = (
  'experiment',
  'report',
  'run',
  'agree',
  'seconds',
  'loss',
  'evaluated',
  'problem',
)
_GAP = '  '
_LEAST = 40  # Characters of the last column of a table.


def table(experiments: Sequence[Experiment], width: int) -> str:
  """Returns a table with a row per experiment, most urgent first.

  Args:
    experiments: the findings.
    width: of the terminal. Longer text goes on in further lines of its column.
  """
  rows = [_HEADS]
  for e in by_priority(list(experiments)):
    rows.append(
      (
        e.name,
        str(e.status),
        e.traced,
        format_count(e.parameters),
        format_size(e.bytes_per_device),
        e.next_step,
      )
    )
  return '\n'.join([*aligned(rows, width, (3, 4)), '', summary(experiments)])


def aligned(
  rows: Sequence[Sequence[str]], width: int, right: Collection[int] = ()
) -> list[str]:
  """Returns the lines of a table, whose last column is wrapped.

  Args:
    rows: the cells, the first row has the heads.
    width: of the terminal.
    right: numbers of the columns that are aligned to the right.
  """
  *columns, _ = zip(*rows, strict=True)
  widths = [max(map(len, column)) for column in columns]
  indent = sum(widths) + len(_GAP) * len(widths)
  lines = []
  for *cells, last in rows:
    head = [
      cell.rjust(n) if i in right else cell.ljust(n)
      for i, (cell, n) in enumerate(zip(cells, widths, strict=True))
    ]
    wrapped = textwrap.wrap(
      last,
      max(_LEAST, width - indent),
      break_long_words=False,
      break_on_hyphens=False,
    )
    first, *others = wrapped or ['']
    lines.append(_GAP.join([*head, first]).rstrip())
    lines += [' ' * indent + other for other in others]
  return lines


def trials(experiments: Sequence[Experiment], width: int) -> str:
  """Returns a table of trial runs: whether each ran as the report says.

  Args:
    experiments: the findings; those without a trial are left out.
    width: as of `table`.
  """
  rows = [_TRIAL_HEADS]
  tried = [e for e in by_priority(list(experiments)) if e.trial is not None]
  for e in tried:
    trial = e.trial
    rows.append(
      (
        e.name,
        str(e.status),
        'FAILED' if trial.problem else 'ran',
        'yes' if e.agrees else 'NO',
        '?' if trial.seconds is None else f'{trial.seconds:.0f}',
        format_losses(trial.losses),
        ', '.join(map(format_loss, trial.eval_losses)),
        ' '.join(trial.problem.split()),
      )
    )
  agreeing = sum(bool(e.agrees) for e in tried)
  return '\n'.join(
    [
      *aligned(rows, width, (4,)),
      '',
      f'report and run agree on {agreeing} of {len(tried)}',
    ]
  )


def format_trial(trial: Trial) -> str:
  """Returns a description of a trial run.

  >>> format_trial(Trial(seconds=12.4, losses=(2.5, 2.0), eval_losses=(2.2,)))
  'ran in 12 seconds: loss 2.5 to 2, evaluated 2.2'
  """
  if trial.problem:
    return f'FAILED: {trial.problem}'
  evaluated = ', '.join(map(format_loss, trial.eval_losses))
  return (
    f'ran in {trial.seconds:.0f} seconds: loss {format_losses(trial.losses)},'
    f' evaluated {evaluated}'
  )


def format_losses(losses: Sequence[float | str]) -> str:
  """Returns the first and the last loss of a run.

  >>> format_losses([6.25, 6.0, 5.5])
  '6.25 to 5.5'
  """
  ends = [losses[0], losses[-1]] if len(losses) > 1 else losses
  return ' to '.join(map(format_loss, ends))


def format_loss(loss: float | str) -> str:
  """Returns a loss in four digits; `nan` and `inf` are strings."""
  return loss if isinstance(loss, str) else f'{loss:.4g}'


def summary(experiments: Sequence[Experiment]) -> str:
  """Returns the number of experiments of each status."""
  counts = {
    status: sum(e.status is status for e in experiments) for status in Status
  }
  by_status = ', '.join(f'{n} {status}' for status, n in counts.items() if n)
  return f'{len(experiments)} experiment(s): {by_status}'


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
  if e.trial:
    yield f'  trial run: {format_trial(e.trial)}'


def _task(task: Task) -> Iterator[str]:
  yield f'  task {task.name}'.rstrip() + f': {task.class_path}, {task.status}'
  yield from _indented(_block('not native, because', map(str, task.issues)))
  yield from _indented(_block('to make it native', task.advice))
  if task.layers is not None:
    yield '    layers (+ has a translation, - does not):'
    yield from _layer(task.layers, '      ')
  yield from _indented(_memory(task))
  outcomes = {
    'checkpoints': task.checkpoints,
    'trace': task.trace or NOT_TRACED,
  }
  for name, outcome in outcomes.items():
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
