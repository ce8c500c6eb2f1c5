"""Formats a comparison as text."""

from collections.abc import Iterator

from adaptors.lingvo_parity import comparing
from adaptors.lingvo_parity.comparing import REGROUPED, Comparison, Row

# Number of layers without a counterpart that are listed.
_NAMED = 6


def report(compared: Comparison) -> str:
  """Returns tables of all comparisons, and the verdict as the last line."""
  lines = [
    *_table('layers, in the order of Lingvo', 'ours', compared.layers),
    *_regrouped(compared),
    *_table('loss', 'ours', compared.loss),
    *_table('metrics at evaluation', 'ours', compared.metrics),
    *_table('gradients', '', compared.gradients),
    *_table('training', 'ours', compared.steps),
    *_weights(compared),
    *_rounded(compared),
    '',
    verdict(compared),
  ]
  return '\n'.join(lines)


def verdict(compared: Comparison) -> str:
  """Returns the overall result in a line."""
  departing = compared.departing
  random = len(compared.random)
  if random and not departing:
    return f'{random} value(s) are random, and not compared; all others agree'
  if not departing:
    rounded = len(compared.rounded)
    besides = f', {rounded} value(s) up to rounding errors' if rounded else ''
    return f'Lingvo and its translation agree{besides}'
  count = f'{len(departing)} compared value(s) depart'
  first = compared.first
  if first is None:
    cells = filter(None, (departing[0].lingvo, departing[0].ours))
    return f'{count}; no layer does. The first: {", ".join(cells)}'
  return (
    f'{count}. The first layer that departs: {first.lingvo}, here'
    f' {first.ours}, by {first.difference:.3g}'
  )


def _table(head: str, second: str, rows: list[Row]) -> Iterator[str]:
  if not rows:
    return
  first = max(len(head), *(len(row.lingvo) for row in rows))
  then = max(len(second), *(len(row.ours) for row in rows))
  yield ''
  yield f'{head:{first}}  {second:{then}}  difference'
  for row in rows:
    yield (
      f'{row.lingvo:{first}}  {row.ours:{then}}'
      f'  {row.difference:10.2e}  {row.verdict}'
    )


def _regrouped(compared: Comparison) -> Iterator[str]:
  if any(row.verdict == REGROUPED for row in compared.layers):
    yield (
      f'"{REGROUPED}": operations are grouped into layers differently; values'
      ' computed from the layer agree'
    )
  unpaired = compared.unpaired
  if unpaired:
    more = len(unpaired) - _NAMED
    yield (
      'without a counterpart here (their children or parents may have one): '
      + ', '.join(unpaired[:_NAMED])
      + (f' and {more} more' if more > 0 else '')
    )


def _rounded(compared: Comparison) -> Iterator[str]:
  if compared.rounded:
    yield (
      f'"{comparing.ROUNDING}": it differs no more than in two runs here whose'
      ' initial weights differ by a rounding error'
    )


def _weights(compared: Comparison) -> Iterator[str]:
  found = compared.weights
  if not found:
    return
  most = max(found, key=found.get)
  yield f'after the last step weights differ by up to {found[most]:.2e}: {most}'
  if compared.rounding and found[most] > comparing.AMPLIFIED:
    yield (
      '  two runs here whose initial weights differ by a rounding error end'
      f' {compared.rounding[most]:.2e} apart there:'
      f' {_of_rounding(compared, most)}'
    )


def _of_rounding(compared: Comparison, path: str) -> str:
  """Returns what rounding errors explain of a weight's difference."""
  most = comparing.ROUNDING_FACTOR * compared.rounding[path]
  outliers = compared.outliers[path]
  if compared.weights[path] <= most:
    return 'the optimizer amplifies rounding errors of small gradients'
  if outliers.are_few and outliers.others <= most:
    return (
      f'rounding errors explain all but {outliers.count} of its'
      f' {outliers.size} elements; single units differ where an activation is'
      ' at its kink (ReLU) on one side only, or their gradient is next to 0'
    )
  return 'rounding errors do not explain it'
