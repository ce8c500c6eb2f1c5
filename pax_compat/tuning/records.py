"""The files of a study: `study.json` and `trials.jsonl` in its folder.

`trials.jsonl` has a line when a trial starts and one when it ends; of the lines
of a trial, the last one counts. So a study that was killed continues.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from pax_compat import errors
from pax_compat.runs import files, job_dir
from pax_compat.tuning import metric_values

STUDY_FILE = 'study.json'
TRIALS_FILE = 'trials.jsonl'
RUNNING, DONE, STOPPED, FAILED = 'running', 'done', 'stopped', 'failed'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopping:
  """When a trial ends early.

  Attributes:
    rule: 'none', 'median' or 'value'; see `stopping_rules`.
    min_trials: trials that are done before the median rule stops one.
    min_steps: steps that each trial makes before the median rule stops it.
    step_values: steps and limits of the value rule.
  """

  rule: str = 'none'
  min_trials: int = 3
  min_steps: int = 0
  step_values: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evolution:
  """Settings of regularized evolution.

  Attributes:
    population_size: how many of the last trials may be parents. The trials
      before there are as many have random values.
    tournament_size: how many of these are drawn; the best one is the parent.

  Raises:
    UserError: the numbers do not fit.
  """

  population_size: int = 100
  tournament_size: int = 10

  def __post_init__(self):
    if not 1 <= self.tournament_size <= self.population_size:
      raise errors.UserError(
        f'evolution: tournament_size is {self.tournament_size} and'
        f' population_size {self.population_size}; expected'
        ' 1 <= tournament_size <= population_size'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What all trials of a study have in common.

  Attributes:
    study: its name.
    experiment: the name of the experiment.
    space: the parameters and their values, as text.
    search: the algorithm: 'random', 'grid', 'bayesian' or 'evolution'.
    seed: of the algorithm.
    metric: see `metric_values`.
    goal: 'min' or 'max'.
    value: whether the 'last' or the 'best' value of the metric counts.
    stopping: when a trial ends early.
    flags: of each trial, those that change what it computes.
    evolution: settings of that algorithm.
    sub_experiments: the experiments of a trial; none if it is one run.
    aggregator: makes one value of theirs, see `sub_experiments`; '' for none.
  """

  study: str
  experiment: str
  space: Mapping[str, str]
  search: str
  seed: int
  metric: str
  goal: str
  value: str
  stopping: Stopping = Stopping()
  flags: tuple[str, ...] = ()
  evolution: Evolution = Evolution()
  sub_experiments: tuple[str, ...] = ()
  aggregator: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """One run of a study.

  Attributes:
    number: from 1 on.
    values: of the parameters, by name.
    status: RUNNING, DONE, STOPPED (early) or FAILED.
    metric: the value of the study's metric; None if it is not known, NaN and
      infinity are possible.
    step: of that value.
    error: why it failed.
  """

  number: int
  values: Mapping[str, Any]
  status: str = RUNNING
  metric: float | None = None
  step: int | None = None
  error: str = ''

  def to_json(self) -> str:
    """Returns its line. JSON has neither NaN nor infinity: they are strings."""
    fields = dataclasses.asdict(self)
    if self.metric is not None and not math.isfinite(self.metric):
      fields['metric'] = str(self.metric)
    return json.dumps(fields, allow_nan=False)

  @classmethod
  def from_json(cls, line: str) -> 'Trial':
    fields = files.parse_json(line)
    if isinstance(fields.get('metric'), str):
      fields['metric'] = float(fields['metric'])
    return cls(**fields)


def folder_of(folder: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the folder of a trial."""
  return folder / 'trials' / f'{number:04d}'


def read_settings(folder: pathlib.Path) -> Settings | None:
  """Returns the settings of the study in a folder, None without one.

  Raises:
    UserError: the file is damaged.
  """
  path = folder / STUDY_FILE
  if not path.exists():
    return None
  try:
    fields = files.parse_json(path.read_bytes())['settings']
    stopping = fields.pop('stopping')
    pairs = stopping.pop('step_values')
    # Studies before there was evolution do not have it.
    evolution = Evolution(**fields.pop('evolution', {}))
    lists = {
      name: tuple(fields.get(name, ())) for name in ('flags', 'sub_experiments')
    }
    return Settings(
      **fields | lists,
      stopping=Stopping(**stopping, step_values=tuple(map(tuple, pairs))),
      evolution=evolution,
    )
  except (ValueError, KeyError, TypeError) as e:
    raise errors.UserError(
      f'{path} is damaged ({e!r}); repair it, or give another --job_log_dir'
    ) from e


def write_study(
  folder: pathlib.Path, settings: Settings, best: Trial | None, status: str
):
  """Writes `study.json`.

  Args:
    folder: of the study.
    settings: of the study.
    best: the best trial so far.
    status: RUNNING or DONE.
  """
  fields = {
    'settings': dataclasses.asdict(settings),
    'status': status,
    'best': None if best is None else json.loads(best.to_json()),
  }
  job_dir.replace_text(
    folder / STUDY_FILE, json.dumps(fields, indent=2, allow_nan=False) + '\n'
  )


class TrialsFile:
  """The trials of a study, in a file that grows."""

  def __init__(self, folder: pathlib.Path):
    self._path = folder / TRIALS_FILE

  def read(self) -> dict[int, Trial]:
    """Returns the newest line of each trial, by number.

    A last line that was cut off by a kill is ignored.

    Raises:
      UserError: another line is damaged.
    """
    if not self._path.exists():
      return {}
    *lines, _ = self._path.read_text('utf-8').split('\n')
    found = {}
    for count, line in enumerate(lines, 1):
      try:
        trial = Trial.from_json(line)
      except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise errors.UserError(
          f'line {count} of {self._path} is damaged ({e!r}); remove it'
        ) from e
      found[trial.number] = trial
    return dict(sorted(found.items()))

  def repair(self):
    """Removes a last line that was cut off."""
    if not self._path.exists():
      return
    text = self._path.read_text('utf-8')
    whole = text[: text.rfind('\n') + 1]
    if whole != text:
      job_dir.replace_text(self._path, whole)

  def write(self, trial: Trial):
    """Appends a line."""
    with open(self._path, 'a', encoding='utf-8') as f:
      f.write(trial.to_json() + '\n')
      f.flush()
      os.fsync(f.fileno())

  def clear(self):
    self._path.unlink(missing_ok=True)


def best_of(trials: Mapping[int, Trial], goal: str) -> Trial | None:
  """Returns the best trial that is done or stopped early, None without one."""
  found = None
  for trial in trials.values():
    if trial.status not in (DONE, STOPPED) or trial.metric is None:
      continue
    if math.isnan(trial.metric):
      continue
    if found is None or metric_values.better(trial.metric, found.metric, goal):
      found = trial
  return found
