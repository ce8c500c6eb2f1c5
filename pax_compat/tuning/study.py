"""The life of a study: starts its trials, and records how they end."""

import dataclasses
import pathlib
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from pax_compat import errors
from pax_compat.runs import job_dir, job_lock
from pax_compat.tuning import (
  algorithms,
  metric_values,
  processes,
  records,
  spaces,
  stopping_rules,
  sub_experiments,
  tables,
)

_SECONDS_BETWEEN_LOOKS = 0.05
# A trial that is killed or stopped by others goes on once.
_RESTARTS = 1
_USER_ERROR = 2


class Stopped(Exception):  # noqa: N818 (not an error)
  """The study was asked to stop, and its trials have stopped.

  Attributes:
    signal_number: number of the signal that asked.
  """

  def __init__(self, signal_number: int):
    super().__init__('the study has stopped; the same command continues')
    self.signal_number = signal_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What a study does.

  Attributes:
    settings: what all trials have in common.
    space: the parameters.
    num_trials: how many trials there are at most; None for all of a grid.
    flags: of each trial, in addition to those of its values.
    workers: trials that run at the same time.
    env: environment variables of each trial; `{worker}` stands for the number
      of its worker, from 0 on.
    start: starts a process, as `processes.start` does.
  """

  settings: records.Settings
  space: spaces.Space
  num_trials: int | None
  flags: tuple[str, ...] = ()
  workers: int = 1
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  start: Callable[..., processes.Process] = processes.start


@dataclasses.dataclass
class _Worker:
  """A trial that runs.

  Attributes:
    trial: the trial.
    process: its process.
    restarts: how often that was started again.
    done: how many of its experiments have ended, if it has several.
  """

  trial: records.Trial
  process: processes.Process
  restarts: int = 0
  done: int = 0


def run(
  plan: Plan, *, job_log_dir: str, print_line: Callable[[str], None]
) -> dict[int, records.Trial]:
  """Runs a study to its end, from where an earlier process left it.

  Args:
    plan: what the study does.
    job_log_dir: its folder, which is local.
    print_line: prints a line for the user.

  Returns:
    The trials by number.

  Raises:
    UserError: the folder has another study, or the first trial cannot start.
    Stopped: SIGTERM or SIGINT arrived, and all trials have stopped.
  """
  algorithms.check(plan.settings.search, plan.space)
  folder = job_dir.local_path(job_log_dir)
  # Also refuses the folder of a run.
  job_dir.claim(folder, f'study {plan.settings.study}')
  with job_lock.held(folder, 'study'):
    return _Study(plan, folder, print_line).run()


class _Study:
  """A study that runs in this process."""

  def __init__(
    self,
    plan: Plan,
    folder: pathlib.Path,
    print_line: Callable[[str], None],
  ):
    self._plan = plan
    self._folder = folder
    self._print = print_line
    self._file = records.TrialsFile(folder)
    self._trials: dict[int, records.Trial] = {}
    self._workers: dict[int, _Worker] = {}
    self._signal: int | None = None

  def run(self) -> dict[int, records.Trial]:
    settings = self._plan.settings
    self._open()
    before = {
      number: signal.signal(number, self._on_signal)
      for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
      self._loop()
    finally:
      self._stop_trials()
      for number, handler in before.items():
        signal.signal(number, handler)
    if self._signal is not None:
      raise Stopped(self._signal)
    self._write(records.DONE)
    self._print(tables.text(self._trials, self._plan.space.names, settings))
    return self._trials

  def _open(self):
    """Reads what an earlier process of the study left."""
    self._file.repair()
    known = records.read_settings(self._folder)
    self._trials = self._file.read()
    if known is not None and known != self._plan.settings:
      self._require_unused(known)
      self._file.clear()
      self._trials = {}
    self._write(records.RUNNING)
    ended = sum(t.status != records.RUNNING for t in self._trials.values())
    if self._trials:
      self._print(
        f'study {self._plan.settings.study} continues: {ended} trials have'
        f' ended, {len(self._trials) - ended} go on'
      )

  def _require_unused(self, known: records.Settings):
    """Raises a UserError if a study with other settings has made steps."""
    ended = any(t.status != records.RUNNING for t in self._trials.values())
    if not ended and not list(self._folder.glob('trials/**/metrics.jsonl')):
      return
    mine = dataclasses.asdict(self._plan.settings)
    changed = [
      f'{name} was {value!r} and is {mine[name]!r}'
      for name, value in dataclasses.asdict(known).items()
      if mine[name] != value
    ]
    raise errors.UserError(
      f'--job_log_dir={self._folder} has a study with other settings:'
      f' {"; ".join(changed)}. Give another --job_log_dir'
    )

  def _loop(self):
    waiting = [
      trial
      for trial in self._trials.values()
      if trial.status == records.RUNNING
    ]
    while self._signal is None:
      for slot in range(self._plan.workers):
        if slot in self._workers:
          continue
        trial = waiting.pop(0) if waiting else self._new_trial()
        if trial is not None:
          self._workers[slot] = _Worker(trial, self._start(trial, slot))
      if not self._workers:
        return
      ended = False
      for slot, worker in list(self._workers.items()):
        status = worker.process.poll()
        if status is not None and self._signal is None:
          self._ended(slot, worker, status)
          ended = True
      if not ended:
        time.sleep(_SECONDS_BETWEEN_LOOKS)

  def _new_trial(self) -> records.Trial | None:
    """Returns the next trial, None after the last."""
    limit = self._plan.num_trials
    if limit is not None and len(self._trials) >= limit:
      return None
    settings = self._plan.settings
    found = algorithms.next_values(
      settings.search,
      self._plan.space,
      self._trials,
      seed=settings.seed,
      goal=settings.goal,
      evolution=settings.evolution,
    )
    if found is None:
      return None
    trial = records.Trial(number=found[0], values=dict(found[1]))
    self._record(trial)
    return trial

  def _folder_of(self, trial: records.Trial, done: int) -> pathlib.Path:
    """Returns the folder of a trial's run."""
    folder = records.folder_of(self._folder, trial.number)
    runs = self._plan.settings.sub_experiments
    return folder / runs[done] if runs else folder

  def _start(
    self, trial: records.Trial, slot: int, done: int = 0
  ) -> processes.Process:
    folder = self._folder_of(trial, done)
    runs = self._plan.settings.sub_experiments
    own = f'--trial_of={self._folder}'
    if runs:
      own = f'--sub_experiment={runs[done]}'
    is_new = not (folder / processes.OUTPUT_FILE).exists()
    folder.mkdir(parents=True, exist_ok=True)
    if not is_new:
      self._await_end(trial, folder)
    values = ' '.join(f'{k}={_shown(v)}' for k, v in trial.values.items())
    verb = 'starts' if is_new else 'goes on'
    which = f', {runs[done]},' if runs else ''
    self._print(f'trial {trial.number}{self._of()}{which} {verb}: {values}')
    return self._plan.start(
      [
        *self._plan.flags,
        f'--job_log_dir={folder}',
        own,
        *self._plan.space.flags(trial.values),
      ],
      {k: v.replace('{worker}', str(slot)) for k, v in self._plan.env.items()},
      folder / processes.OUTPUT_FILE,
    )

  def _await_end(self, trial: records.Trial, folder: pathlib.Path):
    """Waits for a process that a killed study left, which stops by itself."""
    # So long it may not know that, and not yet have the lock of the folder.
    time.sleep(2 * processes.SECONDS_BETWEEN_LOOKS)
    has_line = False
    while self._signal is None and job_lock.is_held_here(folder):
      if not has_line:
        self._print(
          f'trial {trial.number} still runs for an earlier process of the'
          ' study; waiting until it has stopped'
        )
      has_line = True
      time.sleep(_SECONDS_BETWEEN_LOOKS)

  def _ended(self, slot: int, worker: _Worker, status: int):
    """Records the end of a trial's process, or starts it again."""
    trial = worker.trial
    interrupted = status < 0 or status in (
      128 + signal.SIGTERM,
      128 + signal.SIGINT,
    )
    if interrupted and worker.restarts < _RESTARTS:
      self._print(f'trial {trial.number} was interrupted (status {status})')
      worker.process = self._start(trial, slot, worker.done)
      worker.restarts += 1
      return
    folder = self._folder_of(trial, worker.done)
    if not status and worker.done + 1 < len(
      self._plan.settings.sub_experiments
    ):
      worker.done, worker.restarts = worker.done + 1, 0
      worker.process = self._start(trial, slot, worker.done)
      return
    del self._workers[slot]
    trial = self._outcome(trial, folder, status)
    if trial.status == records.FAILED:
      self._require_worth_going_on(trial, folder, status)
    self._record(trial)
    best = records.best_of(self._trials, self._plan.settings.goal)
    self._print(self._end_line(trial, folder, best))
    self._write(records.RUNNING)

  def _outcome(
    self, trial: records.Trial, folder: pathlib.Path, status: int
  ) -> records.Trial:
    """Returns the trial with its result.

    Raises:
      UserError: it has made its steps, but the metric is missing.
    """
    settings = self._plan.settings
    if status:
      error = processes.error_of(folder / processes.OUTPUT_FILE)
      return dataclasses.replace(
        trial,
        status=records.FAILED,
        error=error or f'its process ended with status {status}',
      )
    found = sub_experiments.measured(
      records.folder_of(self._folder, trial.number), settings
    )
    stopped = stopping_rules.stopped(folder)
    ends_here = stopped is not None and stopped['step'] == found.step
    return dataclasses.replace(
      trial,
      status=records.STOPPED if ends_here else records.DONE,
      metric=found.value,
      step=found.step,
    )

  def _require_worth_going_on(
    self, trial: records.Trial, folder: pathlib.Path, status: int
  ):
    """Raises a UserError if the others would fail in the same way."""
    settings = self._plan.settings
    metric, of = sub_experiments.split_metric(
      settings.metric, settings.sub_experiments
    )
    known = metric_values.read(folder)
    measured = any(metric_values.is_measured(name) for name in known)
    if (
      measured
      and not of
      and metric_values.is_measured(metric)
      and metric_values.find(metric, known) is None
    ):
      raise metric_values.missing(metric, known)
    ended = [t for t in self._trials.values() if t.status != records.RUNNING]
    if status == _USER_ERROR and not ended and not known:
      raise errors.UserError(
        f'trial {trial.number}, the first one, cannot start: {trial.error}'
      )

  def _end_line(
    self,
    trial: records.Trial,
    folder: pathlib.Path,
    best: records.Trial | None,
  ) -> str:
    head = f'trial {trial.number}{self._of()}'
    if trial.status == records.FAILED:
      output = folder / processes.OUTPUT_FILE
      return f'{head} failed: {trial.error} (its output is in {output})'
    metric = self._plan.settings.metric
    line = f'{head}: {metric} {_shown(trial.metric)} at step {trial.step}'
    if trial.status == records.STOPPED:
      stopped: Any = stopping_rules.stopped(folder)
      line += f', stopped early: {stopped["reason"]}'
    if best is not None:
      line += f'; best {_shown(best.metric)}, of trial {best.number}'
    return line

  def _stop_trials(self):
    """Asks the running trials to stop, and waits until they have."""
    running = [worker.process for worker in self._workers.values()]
    for process in running:
      if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    for process in running:
      process.wait()

  def _record(self, trial: records.Trial):
    self._trials[trial.number] = trial
    self._file.write(trial)

  def _write(self, status: str):
    best = records.best_of(self._trials, self._plan.settings.goal)
    records.write_study(self._folder, self._plan.settings, best, status)

  def _of(self) -> str:
    """Returns ` of N`, with the number of trials if it is known."""
    known = [
      count
      for count in (self._plan.num_trials, self._plan.space.size)
      if count is not None
    ]
    return f' of {min(known)}' if known else ''

  def _on_signal(self, number: int, frame: Any):
    del frame
    self._signal = number


def _shown(value: Any) -> str:
  return f'{value:.6g}' if isinstance(value, float) else str(value)
