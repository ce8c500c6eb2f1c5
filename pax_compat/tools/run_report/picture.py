"""The loss of runs as a small SVG file."""

import html
import math
from collections.abc import Sequence

from pax_compat import errors
from pax_compat.tools.run_report import curves, records

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 48
_MAX_POINTS = 300
_TICKS = 6
_FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="#333"'


def svg(runs: Sequence[records.Run], metric: str = 'loss') -> str:
  """Returns the curves of a metric, of training and of evaluations.

  Equal runs have equal pictures.

  Args:
    runs: with that metric.
    metric: its name.

  Raises:
    UserError: no run has it.
  """
  lines = [
    line
    for line in curves.of_metric(runs, metric, most=_MAX_POINTS)
    if any(map(math.isfinite, line.values))
  ]
  if not lines:
    known = {name for run in runs for _, name in run.curves}
    raise errors.UserError(
      f'no metric {metric!r} to draw'
      + (
        errors.did_you_mean(metric, known)
        or f'; expected one of {errors.short_list(sorted(known))}'
      )
    )
  points = [
    (step, value)
    for line in lines
    for step, value in zip(line.steps, line.values, strict=True)
    if math.isfinite(value)
  ]
  x = _Scale([p[0] for p in points], _LEFT, WIDTH - _RIGHT)
  y = _Scale([p[1] for p in points], HEIGHT - _BOTTOM, _TOP)
  title = ', '.join(dict.fromkeys(run.experiment or run.label for run in runs))
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}"'
    f' height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
    f'<title>{html.escape(f"{metric} of {title}")}</title>',
    f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    *_axes(x, y),
    *(_polyline(line, x, y) for line in lines),
    *_legend(lines),
    _text(_LEFT, 24, f'{metric} of {title}', 'font-weight="600"'),
    _text(WIDTH - _RIGHT, HEIGHT - 10, 'step', 'text-anchor="end"'),
    '</svg>',
  ]
  return '\n'.join(parts) + '\n'


class _Scale:
  """Maps values to pixels, with round numbers at the ticks."""

  def __init__(self, values: Sequence[float], start: float, end: float):
    low, high = min(values), max(values)
    if low == high:
      low, high = low - 0.5, high + 0.5
    width = round_up((high - low) / _TICKS)
    first, last = math.floor(low / width), math.ceil(high / width)
    self.ticks = [i * width for i in range(first, last + 1)]
    self._start, self._end = start, end

  def __call__(self, value: float) -> float:
    low, high = self.ticks[0], self.ticks[-1]
    share = (value - low) / (high - low)
    return self._start + share * (self._end - self._start)


def round_up(number: float) -> float:
  """Returns the next number that is 1, 2 or 5 times a power of ten.

  >>> round_up(0.3), round_up(12)
  (0.5, 20.0)
  """
  power = 10.0 ** math.floor(math.log10(number))
  factor = next(f for f in (1, 2, 5, 10) if number <= f * power * (1 + 1e-9))
  return factor * power


def _axes(x: _Scale, y: _Scale) -> list[str]:
  parts = []
  for tick in y.ticks:
    at = y(tick)
    parts.append(
      f'<path d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}" stroke="#ddd"/>'
    )
    parts.append(_text(_LEFT - 8, at + 4, _number(tick), 'text-anchor="end"'))
  bottom = HEIGHT - _BOTTOM
  parts.append(f'<path d="M{_LEFT} {bottom}H{WIDTH - _RIGHT}" stroke="#333"/>')
  for tick in x.ticks:
    parts.append(
      _text(x(tick), bottom + 18, _number(tick), 'text-anchor="middle"')
    )
  return parts


def _number(value: float) -> str:
  return f'{value:,.6g}' if abs(value) < 1e6 else f'{value:.3g}'


def _polyline(line: curves.Line, x: _Scale, y: _Scale) -> str:
  """Returns a curve, with gaps where a value is not finite."""
  path, is_down = [], False
  for step, value in zip(line.steps, line.values, strict=True):
    if math.isfinite(value):
      path.append(f'{"L" if is_down else "M"}{x(step):.1f} {y(value):.1f}')
    is_down = math.isfinite(value)
  dashes = f' stroke-dasharray="{line.dash}"' if line.dash else ''
  curve = (
    f'<path d="{"".join(path)}" fill="none" stroke="{line.colour}"'
    f' stroke-width="2" stroke-linejoin="round"{dashes}/>'
  )
  if len(path) > 1:
    return curve
  at = path[0][1:].split(' ')
  return f'<circle cx="{at[0]}" cy="{at[1]}" r="4" fill="{line.colour}"/>'


def _legend(lines: Sequence[curves.Line]) -> list[str]:
  parts = []
  for i, line in enumerate(lines):
    at = _TOP + 16 + 20 * i
    dashes = f' stroke-dasharray="{line.dash}"' if line.dash else ''
    parts.append(
      f'<path d="M{WIDTH - _RIGHT - 36} {at - 4}h32" stroke="{line.colour}"'
      f' stroke-width="2"{dashes}/>'
    )
    parts.append(_text(WIDTH - _RIGHT - 44, at, line.name, 'text-anchor="end"'))
  return parts


def _text(x: float, y: float, text: str, more: str = '') -> str:
  escaped = html.escape(text)
  return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} {more}>{escaped}</text>'
