"""The results of an inspection as lines of text."""

import numpy as np

from pax_compat.tools import inspecting


def of_dataset(found: inspecting.Dataset, rows: int) -> str:
  """Returns the lines of a dataset.

  Args:
    found: its results.
    rows: number of examples shown of each batch.
  """
  lines = [f'{found.config.name}: {evaluation_of(found.config)}']
  width = max(map(len, found.specs))
  for name, (shape, dtype) in found.specs.items():
    lines.append(f'  {name.ljust(width)}  {dtype}{list(shape)}')
  for number, batch in enumerate(found.batches):
    lines.append(f'  batch {number}: {described(batch)}')
    for row in range(min(rows, len(batch.weights))):
      for tokens in batch.tokens:
        lines.append(f'    [{row}] {tokens.field}: {tokens.texts[row]!r}')
      for name, texts in batch.scalars.items():
        lines.append(f'    [{row}] {name}: {texts[row]}')
  if found.shards is not None:
    lines.append(f'  {of_shards(found.shards)}')
  lines += [f'warning: {found.config.name}: {w}' for w in found.warnings]
  return '\n'.join(lines)


def evaluation_of(config) -> str:
  """Returns the use of a dataset: training, or how an evaluation reads it."""
  if config.is_training:
    return 'training data'
  if config.reset_for_eval:
    return 'evaluated on all of it'
  return f'evaluated on the next {config.eval_loop_num_batches} batches'


def described(batch: inspecting.Batch) -> str:
  """Returns the shares of a batch that are not padding."""
  rows = len(batch.weights)
  shares = [f'{np.count_nonzero(batch.weights)} of {rows} examples count']
  for tokens in batch.tokens:
    share = tokens.is_token.mean() if tokens.is_token.size else 0.0
    shares.append(f'{share:.0%} of {tokens.field} is not padding')
  return ', '.join(shares)


def of_shards(shards: inspecting.Shards) -> str:
  """Returns the results of comparing several hosts."""
  is_whole = shards.excess is not None
  read = 'all data' if is_whole else 'the first batches'
  return (
    f'{shards.hosts} hosts read {read}: {shards.examples} different examples,'
    f' {shards.shared} of them by more than one host, {shards.repeated} more'
    f' than once by one; batches of each: {", ".join(map(str, shards.batches))}'
  )
