"""Early stopping of the trials of a study.

Each trial decides by itself, after its evaluations, from the metrics of trials
that are done; their folders are next to its own.

* median: its best value so far is worse than the median of the best values that
  the trials which are done had after as many steps.
* value: its value is worse than a limit, at the first evaluation from a step
  on; each step with a limit decides once.
"""

import functools
import json
import math
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.runs import job_dir
from pax_compat.tasks import early_stopping
from pax_compat.tuning import metric_values, records

NONE, MEDIAN, VALUE = 'none', 'median', 'value'
_FILE = 'stopped_early.json'


class TrialStopping:
  """The early stopping function of a trial."""

  def __init__(
    self,
    study: pathlib.Path,
    own: early_stopping.EarlyStoppingFn | None = None,
  ):
    """Makes it.

    Args:
      study: the folder of the study.
      own: the early stopping function of the task.
    """
    self._folder = study
    self._own = own
    self._settings = _settings_of(study)

  def __call__(
    self,
    metrics: dict[str, float],
    running_mode: early_stopping.RunningMode,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: pathlib.Path,
  ) -> bool:
    """Returns whether the trial ends now, see `EarlyStoppingFn`.

    Raises:
      UserError: everything was evaluated, without the metric of the study.
    """
    metric = self._settings.metric
    folder = pathlib.Path(checkpoint_path).parent
    ends = self._own is not None and bool(
      self._own(
        metrics, running_mode, global_step, is_last_ckpt, checkpoint_path
      )
    )
    name = metric_values.find(metric, metrics)
    if name is None:
      known = {**metric_values.read(folder), **metrics}
      split = metric.partition('/')[0].lower()
      measured = {
        part
        for one in known
        for part in (one.partition('/')[0].lower(), one.partition('_')[0])
      }
      if (
        is_last_ckpt
        or split in measured
        and not metric_values.find(metric, known)
      ):
        raise metric_values.missing(metric, known)
      return ends
    if ends or is_last_ckpt:
      return ends
    earlier = metric_values.series(folder, metric)
    own = [one for one in earlier if one[0] < global_step]
    own.append((global_step, metrics[name]))
    if reason := self._reason(folder, own):
      logging.info('the study ends this trial: %s', reason)
      job_dir.replace_text(
        folder / _FILE,
        json.dumps({'step': global_step, 'reason': reason}) + '\n',
      )
    return bool(reason)

  def _reason(self, folder: pathlib.Path, own: metric_values.Series) -> str:
    """Returns why the trial ends, '' if it goes on."""
    step = own[-1][0]
    if (before := stopped(folder)) and before['step'] == step:
      return before['reason']  # It was killed before it was saved.
    rule = self._settings.stopping.rule
    if rule == MEDIAN:
      return self._below_median(own)
    return self._beyond_limit(own) if rule == VALUE else ''

  def _below_median(self, own: metric_values.Series) -> str:
    settings = self._settings
    step, goal = own[-1][0], settings.goal
    if step < settings.stopping.min_steps:
      return ''
    others = []
    for trial in records.TrialsFile(self._folder).read().values():
      if trial.status == records.DONE:
        folder = records.folder_of(self._folder, trial.number)
        values = metric_values.series(folder, settings.metric)
        others.append(
          metric_values.best([v for v in values if v[0] <= step], goal)
        )
    others = [value for value in others if not math.isnan(value)]
    if len(others) < settings.stopping.min_trials:
      return ''
    median = statistics.median(others)
    mine = metric_values.best(own, goal)
    if not metric_values.better(median, mine, goal):
      return ''
    return (
      f'{settings.metric} is {mine:.4g} after step {step}, worse than the'
      f' median {median:.4g} of {len(others)} trials'
    )

  def _beyond_limit(self, own: metric_values.Series) -> str:
    settings = self._settings
    step, value = own[-1]
    passed = [pair for pair in settings.stopping.step_values if pair[0] <= step]
    if not passed:
      return ''
    first, limit = max(passed)
    if any(first <= earlier < step for earlier, _ in own):
      return ''  # Decided before.
    if not metric_values.better(limit, value, settings.goal):
      return ''
    return (
      f'{settings.metric} is {value:.4g} after step {step}, worse than the'
      f' limit {limit:.4g}'
    )


def stopped(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns the step and the reason of the early end of a trial, if any."""
  try:
    return json.loads((folder / _FILE).read_text())
  except (OSError, ValueError):
    return None


def in_trial(study: str) -> Callable[[Any], TrialStopping]:
  """Returns a function that adds the rule of a study to a task's function.

  Args:
    study: the folder of the study.

  Raises:
    UserError: it is not the folder of a study.
  """
  folder = job_dir.local_path(study)
  _settings_of(folder)
  return functools.partial(TrialStopping, folder)


def _settings_of(folder: pathlib.Path) -> records.Settings:
  settings = records.read_settings(folder)
  if settings is None:
    raise errors.UserError(
      f'--trial_of={folder} has no {records.STUDY_FILE}; expected the folder of'
      ' a study, which --study starts'
    )
  return settings
