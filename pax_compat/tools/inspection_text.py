"""What is found out about a dataset, as lines of text."""

import numpy as np

from pax_compat.tools import inspecting


def of_dataset(found: inspecting.Dataset, rows: int) -> str:
  """Returns lines about a dataset.

  Args:
    found: what was found out.
    rows: how many examples of each batch are shown.
  """
  lines = [f'{found.config.name}: {how_it_is_read(found.config)}']
  width = max(map(len, found.specs))
  for name, (shape, dtype) in found.specs.items():
    lines.append(f'  {name.ljust(width)}  {dtype}{list(shape)}')
  for number, batch in enumerate(found.batches):
    lines.append(f'  batch {number}: {described(batch)}')
    for row in range(min(rows, len(batch.weights))):
      for tokens in batch.tokens:
        lines.append(f'    [{row}] {tokens.field}: {tokens.texts[row]!r}')
      for name, texts in batch.singles.items():
        lines.append(f'    [{row}] {name}: {texts[row]}')
  if found.shards is not None:
    lines.append(f'  {of_shards(found.shards)}')
  lines += [f'warning: {found.config.name}: {w}' for w in found.warnings]
  return '\n'.join(lines)


def how_it_is_read(config) -> str:
  """Returns what a dataset is for, and how much of it is read at a time."""
  if config.is_training:
    return 'training data'
  if config.reset_for_eval:
    return 'evaluated on all of it'
  return f'evaluated on the next {config.eval_loop_num_batches} batches'


def described(batch: inspecting.Batch) -> str:
  """Returns how full a batch is."""
  rows = len(batch.weights)
  told = [f'{np.count_nonzero(batch.weights)} of {rows} examples count']
  for tokens in batch.tokens:
    share = tokens.counts.mean() if tokens.counts.size else 0.0
    told.append(f'{share:.0%} of {tokens.field} is no padding')
  return ', '.join(told)


def of_shards(shards: inspecting.Shards) -> str:
  """Returns what several hosts have read."""
  is_whole = shards.excess is not None
  read = 'all of the data' if is_whole else 'the first batches'
  return (
    f'{shards.hosts} hosts read {read}: {shards.examples} different examples,'
    f' {shards.shared} of them by more than one host, {shards.repeated} more'
    f' than once by one; batches of each: {", ".join(map(str, shards.batches))}'
  )
