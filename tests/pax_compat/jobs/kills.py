"""Kills a run again and again, while a job evaluates its checkpoints.

    python -m tests.pax_compat.jobs.kills --kills=30

The run is killed at a random moment after a few steps and started again, and so
is the job at times. In the end the last state must be that of a run without a
kill, bit for bit, and each checkpoint evaluated once, with the metrics of the
evaluation while training. All checkpoints are kept.
"""

import argparse
import json
import pathlib
import random
import tempfile
import time

from tests.pax_compat import trainer_runs

_EVERY = 5


def _settings(kills: int) -> dict:
  steps = max(_EVERY * (kills + 1), 12)
  return {
    'num_train_steps': steps,
    'save_max_to_keep': steps,
    'save_interval_steps': _EVERY,
    'eval_interval_steps': _EVERY,
  }


def kill_at_random(folder: pathlib.Path, kills: int, seed: int) -> int:
  """Returns how often the job was killed; asserts that nothing is lost.

  Args:
    folder: for runs and outputs; it is empty.
    kills: how often the run is killed.
    seed: of the moments.
  """
  draw, settings = random.Random(seed), _settings(kills)
  run, job_kills = folder / 'run', 0
  start = {'settings': settings}
  job_command = trainer_runs.flags(run, '--mode=eval')
  job = trainer_runs.start(job_command, output=folder / 'job', **start)
  for number in range(kills):
    output = folder / f'train{number}'
    train = trainer_runs.start(trainer_runs.flags(run), output=output, **start)
    with train:
      count = draw.randint(1, _EVERY + 3)
      train.wait_until(
        lambda train=train, count=count: (
          train.stdout.count('\nstep ') >= count or train.process.poll() == 0
        )
      )
      time.sleep(draw.random() * 0.3)
    if draw.random() < 0.3:
      with job:  # Its end kills it.
        job_kills += 1
      output = folder / f'job{number}'
      job = trainer_runs.start(job_command, output=output, **start)
    print(f'kill {number + 1}: {trainer_runs.steps_saved(run)}', flush=True)
  trainer_runs.train(run, **start)
  with job:
    assert job.end() == 0, job.stderr
  straight = folder / 'straight'
  trainer_runs.train(straight, **start)
  last = settings['num_train_steps']
  trainer_runs.assert_same_state(run, straight, last)
  saved = trainer_runs.steps_saved(run)
  own = _values(run / 'eval_metrics.jsonl', 'eval_test_dev')
  assert own == _values(straight / 'metrics.jsonl', 'eval_dev')
  assert {step for step, _ in own} == set(saved)
  return job_kills


def _values(path: pathlib.Path, split: str) -> dict[tuple[int, str], float]:
  """Returns the values of a split by step and name; none is there twice."""
  lines = map(json.loads, path.read_text().splitlines())
  lines = [x for x in lines if x['split'] == split]
  found = {(x['step'], x['name']): x['value'] for x in lines}
  assert len(found) == len(lines), f'{path} has a value twice'
  return found


def run():
  """Entry point of the command."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--kills', type=int, default=30)
  parser.add_argument('--seed', type=int, default=1)
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    job_kills = kill_at_random(pathlib.Path(folder), given.kills, given.seed)
  print(
    f'{given.kills} kills of the run and {job_kills} of the job: the same last'
    ' state, and each checkpoint evaluated once'
  )


if __name__ == '__main__':
  run()
