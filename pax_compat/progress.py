"""The progress of a training run: rates, input wait and time to the end."""

import time
from collections.abc import Callable


class Progress:
  """Counts steps and makes the progress line.

  Rates are taken over a window, which reaches from one report to the next. The
  clock reads only at its ends, so counting costs the train loop nothing.
  """

  def __init__(
    self,
    total_steps: int,
    *,
    start_step: int = 0,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Begins the first window.

    Args:
      total_steps: the step at which the run ends.
      start_step: steps that were done before, if the run continues.
      clock: returns seconds.
    """
    self._total_steps = total_steps
    self._step = start_step
    self._loss: float | None = None
    self._clock = clock
    self.start()

  def start(self) -> None:
    """Begins a new window and forgets the old one.

    Called after the first step, whose time is mostly compilation, and after
    pauses that are not training, such as an evaluation.
    """
    self._start_time = self._clock()
    self._steps = 0
    self._tokens = 0.0
    self._input_wait = 0.0

  def count_step(self, *, tokens: float = 0, input_wait: float = 0.0) -> None:
    """Counts one finished step.

    Args:
      tokens: that it trained on, over all processes.
      input_wait: seconds that it waited for its batch.
    """
    self._step += 1
    self._steps += 1
    self._tokens += tokens
    self._input_wait += input_wait

  def know_loss(self, loss: float) -> None:
    """Takes the newest loss that is known; it may be of an earlier step."""
    self._loss = float(loss)

  def report(self) -> tuple[str, dict[str, float]]:
    """Returns the progress line and its rates, and begins a new window.

    Returns:
      The line, and `steps_per_second`, `tokens_per_second` and
      `input_wait_fraction` for the metrics; no rates if the window is empty.
    """
    seconds = self._clock() - self._start_time
    rates = {}
    if self._steps and seconds > 0:
      rates = {
        'steps_per_second': self._steps / seconds,
        'tokens_per_second': self._tokens / seconds,
        'input_wait_fraction': self._input_wait / seconds,
      }
    line = self._line(rates)
    self.start()
    return line, rates

  def _line(self, rates: dict[str, float]) -> str:
    parts = [f'step {self._step}/{self._total_steps}']
    if self._loss is not None:
      parts.append(f'loss {self._loss:.4g}')
    if rates:
      left = max(self._total_steps - self._step, 0)
      parts.append(f'{_short(rates["steps_per_second"])} steps/s')
      if self._tokens:
        parts.append(f'{_short(rates["tokens_per_second"])} tokens/s')
      parts.append(f'input wait {rates["input_wait_fraction"]:.0%}')
      parts.append(f'ETA {format_seconds(left / rates["steps_per_second"])}')
    return '  '.join(parts)


def format_seconds(seconds: float) -> str:
  """Returns a duration in its two largest units: `1m23s`, `2h05m`, `3d04h`."""
  minutes, s = divmod(round(seconds), 60)
  hours, m = divmod(minutes, 60)
  days, h = divmod(hours, 24)
  if days:
    return f'{days}d{h:02d}h'
  if hours:
    return f'{hours}h{m:02d}m'
  return f'{minutes}m{s:02d}s' if minutes else f'{s}s'


def _short(number: float) -> str:
  """Returns a number with three digits and a unit: `3.4`, `13.9k`, `1.2M`."""
  for limit, unit in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if number >= limit:
      return f'{number / limit:.1f}{unit}'
  return f'{number:.1f}' if number >= 1 else f'{number:.2g}'
