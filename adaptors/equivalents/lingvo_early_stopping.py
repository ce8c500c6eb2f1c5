"""Lingvo's early stopping: a run ends when a metric stops improving.

Translated configs contain it, so it does not import Lingvo.
"""

import json
import math
import pathlib

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.tasks.early_stopping import RunningMode


class EarlyStop(config_lib.Configurable):
  """Ends a run when its best step is too long ago.

  A step is the best one if its metric improves on that of the previous best
  step by more than a tolerance. The history is read from `metrics.jsonl`, so a
  resumed run has all of it.

  Attributes:
    split: the evaluation's split in `metrics.jsonl`, such as `eval_Dev`.
    metric: the metric's name.
    minimize: whether smaller is better.
    tolerance: the improvement that is ignored.
    window: the run ends when the last evaluation is more than this number of
      steps after the best one; positive.
    min_steps: the run does not end before this step.

  Raises:
    UserError: `window` is not positive.
  """

  split: str = config_lib.REQUIRED
  metric: str = 'log_pplx'
  minimize: bool = True
  tolerance: float = 0.0
  window: int = config_lib.REQUIRED
  min_steps: int = 0

  def __post_init__(self):
    if self.window <= 0:
      raise errors.wrong_field(self, 'window', 'a number of steps')

  def __call__(
    self,
    metrics: dict[str, float],
    running_mode: RunningMode,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: pathlib.Path,
  ) -> bool:
    """Returns whether the run ends now; see `EarlyStoppingFn`.

    Raises:
      UserError: the metric is not among those of the evaluation.
    """
    del running_mode, is_last_ckpt
    prefix = f'{self.split}/'
    measured = [k[len(prefix) :] for k in metrics if k.startswith(prefix)]
    if measured and self.metric not in measured:
      raise errors.UserError(
        f'EarlyStop.metric: {self.split} has no metric {self.metric!r}'
        + errors.did_you_mean(self.metric, measured)
      )
    history = self._history(checkpoint_path.parent / 'metrics.jsonl')
    best, last = self.best_step(history)
    return last - best > self.window and last >= self.min_steps

  def best_step(self, history: list[tuple[int, float]]) -> tuple[int, int]:
    """Returns the best and the last step; (0, 0) for an empty history.

    Args:
      history: (step, value) of each evaluation, in order.
    """
    if not history:
      return 0, 0
    sign = 1.0 if self.minimize else -1.0
    (best, best_value), *others = history
    for step, value in others:
      if sign * (best_value - value) > self.tolerance:
        best, best_value = step, value
    return best, history[-1][0]

  def _history(self, path: pathlib.Path) -> list[tuple[int, float]]:
    """Returns (step, value) of each evaluation of the run, in order."""
    if not path.exists():
      return []
    found = []
    for text in path.read_text(encoding='utf-8').splitlines():
      line = json.loads(text)
      if (line['split'], line['name']) == (self.split, self.metric):
        value = line['value']
        found.append((line['step'], math.nan if value is None else value))
    return found
