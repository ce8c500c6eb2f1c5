"""The progress line of a training run: rates, input wait and ETA."""

import collections
import time
from collections.abc import Callable
from typing import NamedTuple


class _Mark(NamedTuple):
  """Counters at a point in time."""

  seconds: float
  steps: int
  tokens: float
  input_wait: float
  flops: float = 0.0


class ProgressLine(str):
  """A line that the next one replaces, where it can: in a terminal."""

  __slots__ = ()


class Progress:
  """Counts steps and formats the progress line.

  Rates are moving averages over the last `rate_steps` steps, or fewer after a
  start or a pause. Time spent on compilation is left out of them.
  """

  def __init__(
    self,
    total_steps: int,
    *,
    start_step: int = 0,
    rate_steps: int = 10,
    peak_flops: float | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts counting.

    Args:
      total_steps: the step at which the run ends.
      start_step: the step that the run continues from, 0 for a new run.
      rate_steps: the window of the rates.
      peak_flops: the largest number of floating point operations per second of
        all devices together; None for no MFU.
      clock: returns seconds.
    """
    self._total_steps = total_steps
    self._step = start_step
    self._loss: float | None = None
    self._peak_flops = peak_flops
    self._clock = clock
    self._left_out = 0.0  # seconds
    # The start of the window, and the end of each step in it.
    self._marks: collections.deque[_Mark] = collections.deque(
      maxlen=rate_steps + 1
    )
    self.start()

  def start(self, *, at_last_step: bool = False) -> None:
    """Resets the rates.

    Called after the first step, which is mostly compilation, and after a pause
    in training, such as an evaluation.

    Args:
      at_last_step: whether rates begin when the last step has ended, not now.
    """
    seconds = self._marks[-1].seconds if at_last_step else self._seconds()
    self._marks.clear()
    self._marks.append(_Mark(seconds, 0, 0.0, 0.0))

  def leave_out(self, seconds: float) -> None:
    """Leaves time that has just passed, as of compilation, out of the rates."""
    self._left_out += seconds

  def now(self) -> float:
    """Returns the seconds of the clock."""
    return self._clock()

  def count_step(
    self,
    *,
    tokens: float = 0,
    input_wait: float = 0.0,
    flops: float = 0.0,
    ended: float | None = None,
  ) -> None:
    """Counts one finished step.

    Args:
      tokens: of its batch, over all processes.
      input_wait: seconds spent waiting for the batch.
      flops: the model's floating point operations for the batch, over all
        processes; 0 if they are not known.
      ended: when it had ended, as `now` says, less all time left out by then;
        None for this moment.
    """
    self._step += 1
    last = self._marks[-1]
    seconds = self._seconds() if ended is None else ended
    self._marks.append(
      _Mark(
        max(seconds, last.seconds),
        last.steps + 1,
        last.tokens + tokens,
        last.input_wait + input_wait,
        last.flops + flops,
      )
    )

  def set_loss(self, loss: float) -> None:
    """Sets the loss to print; it may be that of an earlier step."""
    self._loss = float(loss)

  def report(self) -> tuple[ProgressLine, dict[str, float]]:
    """Returns the progress line and its rates.

    Returns:
      The line, and `steps_per_second`, `tokens_per_second`,
      `input_wait_fraction` and, if the peak of the devices and the model's
      FLOPs are known, `mfu` as metrics; without rates if no step was counted.
    """
    first, last = self._marks[0], self._marks[-1]
    seconds = last.seconds - first.seconds
    rates = {}
    if last.steps > first.steps and seconds > 0:
      # The wait may have started before the window.
      wait = min(1.0, (last.input_wait - first.input_wait) / seconds)
      rates = {
        'steps_per_second': (last.steps - first.steps) / seconds,
        'tokens_per_second': (last.tokens - first.tokens) / seconds,
        'input_wait_fraction': wait,
      }
      flops = (last.flops - first.flops) / seconds
      if flops and self._peak_flops:
        rates['mfu'] = flops / self._peak_flops
    return self._line(rates), rates

  def _seconds(self) -> float:
    return self._clock() - self._left_out

  def _line(self, rates: dict[str, float]) -> ProgressLine:
    fields = [f'step {self._step}/{self._total_steps}']
    if self._loss is not None:
      fields.append(f'loss {self._loss:.4g}')
    if rates:
      left = max(self._total_steps - self._step, 0)
      fields.append(f'{_short(rates["steps_per_second"])} steps/s')
      if rates['tokens_per_second']:
        fields.append(f'{_short(rates["tokens_per_second"])} tokens/s')
      if 'mfu' in rates:
        fields.append(f'MFU {rates["mfu"]:.1%}')
      fields.append(f'input wait {rates["input_wait_fraction"]:.0%}')
      fields.append(f'ETA {format_seconds(left / rates["steps_per_second"])}')
    return ProgressLine('  '.join(fields))


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
  """Returns a number with an SI prefix: `3.4`, `13.9k`, `1.2M`."""
  for limit, unit in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if number >= limit:
      return f'{number / limit:.1f}{unit}'
  return f'{number:.1f}' if number >= 1 else f'{number:.2g}'
