"""Trials that end at once, for the tests of studies."""

import json
import pathlib
import signal
from collections.abc import Callable

from pax_compat.tuning import metric_values, records, spaces, study


class Process:
  """A process that has ended, or that runs until it gets a signal."""

  def __init__(self, status: int | None):
    self._status = status

  def poll(self) -> int | None:
    return self._status

  def send_signal(self, number: int):
    self._status = 128 + number

  def wait(self) -> int:
    assert self._status is not None
    return self._status


class Starter:
  """Starts such processes, and records them.

  Attributes:
    started: the flags of each, by name.
    environments: the environment variables of each.
  """

  def __init__(self, act: Callable[[pathlib.Path, dict], int | None]):
    """Makes it.

    Args:
      act: takes the folder and the flags of a trial, and returns the status of
        its process, None if it runs on.
    """
    self._act = act
    self.started: list[dict[str, str]] = []
    self.environments: list[dict[str, str]] = []

  def __call__(self, arguments, env, output) -> Process:
    given = dict(a.removeprefix('--').split('=', 1) for a in arguments)
    given |= {
      pair[0]: pair[1]
      for a in arguments
      if a.startswith('--attr=')
      for pair in [a.removeprefix('--attr=').split('=', 1)]
    }
    self.started.append(given)
    self.environments.append(dict(env))
    folder = pathlib.Path(given['job_log_dir'])
    assert output == folder / 'output.txt'
    output.touch()
    return Process(self._act(folder, given))


def write_metrics(folder: pathlib.Path, losses, name: str = 'loss'):
  """Writes the losses of evaluations at the steps 5, 10, ..."""
  folder.mkdir(parents=True, exist_ok=True)
  lines = [
    {'step': 5 * i, 'split': 'eval_dev', 'name': name, 'value': loss}
    for i, loss in enumerate(losses, 1)
  ]
  (folder / 'metrics.jsonl').write_text(
    ''.join(json.dumps(line) + '\n' for line in lines)
  )


def plan(
  starter: Starter,
  tune=('attr:X=1,2,3', 'attr:Y=a,b'),
  *,
  search: str = 'grid',
  num_trials: int | None = None,
  workers: int = 1,
  env: dict | None = None,
  **settings,
) -> study.Plan:
  """Returns the plan of a study of such trials."""
  space = spaces.parsed(tune)
  common = dict(
    study='s',
    experiment='E',
    search=search,
    seed=0,
    metric='eval_dev/loss',
    goal=metric_values.MIN,
    value=metric_values.LAST,
  )
  return study.Plan(
    settings=records.Settings(space=space.described(), **(common | settings)),
    space=space,
    num_trials=num_trials,
    workers=workers,
    env=env or {},
    start=starter,
  )


def interrupted(act):
  """Returns an `act` whose trial runs on while the study gets SIGTERM."""

  def act_and_stop(folder, given):
    status = act(folder, given)
    if status is None:
      signal.raise_signal(signal.SIGTERM)
    return status

  return act_and_stop
