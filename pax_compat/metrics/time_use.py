"""What the time of a run is used for, from its first start and over restarts.

A checkpoint has the sums up to its step, so steps that are lost when a run is
killed are lost time, as is the time in which no process runs.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pax_compat.metrics import progress

# Key in a checkpoint: the sums up to its step. Prefix of the metrics.
TIME_USE = 'time_use'

START, COMPILATION, TRAINING = 'start', 'compilation', 'training'
EVALUATION, SAVING = 'evaluation', 'saving'
KINDS = (TRAINING, EVALUATION, SAVING, COMPILATION, START)
# Time of which a run has nothing left.
_LOST = 'lost'


class TimeUse:
  """Adds up the seconds of the training loop, by what they are used for.

  Each second counts once:

    training: steps, and waiting for their batches, which the metric
      `input_wait_fraction` has.
    evaluation: evaluations and decodings.
    saving: what the loop waits for; a save in the background is not counted.
    compilation: of the train step, as far as the loop waits for it.
    start: of a process, until its first step.
    lost: everything else since the first start of the run: no process was
      running, or a process made steps that it did not save before it ended.

  The fraction of training is known as goodput.

  >>> seconds = iter([0.0, 10.0, 40.0, 45.0]).__next__
  >>> use = TimeUse(clock=seconds, now=lambda: 1000.0)
  >>> with use.of(TRAINING):
  ...   pass
  >>> use.to_save()['seconds']
  {'training': 30.0, 'evaluation': 0.0, 'saving': 0.0, 'compilation': 0.0, \
'start': 15.0}
  """

  def __init__(
    self,
    *,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
  ):
    """Starts counting, with the start of a process, for a new run.

    Args:
      clock: returns seconds.
      now: returns seconds since 1970, which processes share.
    """
    self._clock = clock
    self._now = now
    self._lock = threading.Lock()  # Reports have a thread of their own.
    self._began = now()
    self._seconds = dict.fromkeys(KINDS, 0.0)
    self._kind, self._since = START, clock()

  def go_on(self, saved: Mapping[str, Any]):
    """Adds the sums of the checkpoint from which the run continues.

    Args:
      saved: of the checkpoint, as `to_save` returned it.
    """
    self._began = min(self._began, float(saved['began']))
    for kind in KINDS:
      self._seconds[kind] += float(saved['seconds'].get(kind, 0.0))

  @contextlib.contextmanager
  def of(self, kind: str) -> Iterator[None]:
    """Within it, time is counted for `kind`, and for nothing else."""
    before = self._begin(kind)
    try:
      yield
    finally:
      self._begin(before)

  def _begin(self, kind: str) -> str:
    """Counts from now on for another kind; returns the one before."""
    with self._lock:
      self._count()
      before, self._kind = self._kind, kind
    return before

  def _count(self):
    now = self._clock()
    self._seconds[self._kind] += now - self._since
    self._since = now

  def to_save(self) -> dict[str, Any]:
    """Returns the sums up to now, as JSON values."""
    with self._lock:
      self._count()
      return {'began': self._began, 'seconds': dict(self._seconds)}

  def fractions(self) -> dict[str, float]:
    """Returns the fractions of the time since the first start; their sum is 1.

    In the first moment of a run, there are none.
    """
    with self._lock:
      self._count()
      seconds = dict(self._seconds)
    counted = sum(seconds.values())
    # Clocks of different machines may differ.
    total = max(self._now() - self._began, counted)
    if not total:
      return {}
    seconds[_LOST] = total - counted
    return {kind: value / total for kind, value in seconds.items()}

  def metrics(self) -> dict[str, float]:
    """Returns the fractions as metrics, such as `time_use/training`."""
    return {f'{TIME_USE}/{k}': v for k, v in self.fractions().items()}

  def __str__(self) -> str:
    """Returns a line: `since its first start 2h05m: training 91%, ...`."""
    total = progress.format_seconds(self._now() - self._began)
    return f'{total} since the first start: {percentages(self.fractions())}'


def percentages(fractions: Mapping[str, float]) -> str:
  """Returns fractions as text, without those that round to zero.

  >>> percentages({'training': 0.956, 'saving': 0.004, 'lost': 0.04})
  'training 96%, lost 4%'
  """
  return ', '.join(
    f'{kind} {fraction:.0%}'
    for kind, fraction in fractions.items()
    if fraction >= 0.005
  )
