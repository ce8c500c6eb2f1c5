"""Runs that hang, in processes of their own, and continue afterwards."""

import json
import re

import pytest

from pax_compat.runs import run_log
from tests.pax_compat import hanging_experiment as hanging
from tests.pax_compat import trainer_runs

pytestmark = pytest.mark.slow

HANGING = f'{hanging.__name__}.Hanging'
LIMIT = '--step_timeout_minutes=0.2'
IN_FUNCTION = 'in wait_for_the_end_of_time: '


def _setting(**fields) -> dict[str, str]:
  """Returns the environment variable of the experiment."""
  return {'HANGING': json.dumps(fields)}


def _entries(folder, level: str, name: str = 'log.txt') -> list[str]:
  """Returns the messages of a run's log of that level, about signs of life."""
  return [
    entry.message
    for entry in run_log.parse((folder / name).read_text())
    if entry.level == level and entry.message.startswith('no sign of life')
  ]


def _assert_ended(folder, done, name: str = 'log.txt'):
  """Asserts that a process has ended, and that its log names the function."""
  assert done.returncode == 1, done.stdout + done.stderr
  last = done.stderr.splitlines()[-1]
  assert re.match('error: no sign of life for 1[2-9] seconds since "', last), (
    last
  )
  # A busy machine may be slow before.
  *_, warning = _entries(folder, 'W', name)
  [error] = _entries(folder, 'E', name)
  assert re.match(
    r'no sign of life for [6-9] seconds; after 12 the process ends', warning
  )
  assert IN_FUNCTION in warning and IN_FUNCTION in error
  assert 'the same command continues from the last checkpoint' in error


def test_a_slow_run_is_not_ended(tmp_path):
  """Its last evaluation takes longer than the limit."""
  setting = _setting(path='', where=hanging.IN_EVALUATION, seconds=2)
  settings = dict(num_train_steps=2, eval_interval_steps=0, dev={'end': 10})
  folder = tmp_path / 'run'
  trainer_runs.train(folder, LIMIT, exp=HANGING, settings=settings, **setting)
  entries = run_log.parse((folder / 'log.txt').read_text())
  assert any("'dev' on 10 batches" in entry.message for entry in entries)
  assert trainer_runs.steps_saved(folder) == [2]


@pytest.mark.parametrize(
  ('where', 'call', 'saved'),
  [
    (hanging.IN_STEP, 7, 5),
    # The first batch of the second evaluation: each has four, with the next one
    # of training. Step 10 is saved before it.
    (hanging.IN_EVALUATION, 5, 10),
  ],
)
def test_a_run_that_hangs_ends_and_continues(tmp_path, where, call, saved):
  folder, file = tmp_path / 'run', tmp_path / 'hangs'
  file.touch()
  setting = _setting(path=str(file), where=where, call=call)
  command = trainer_runs.flags(folder, LIMIT, exp=HANGING)
  done = trainer_runs.forked(*command, **setting)
  _assert_ended(folder, done)
  assert trainer_runs.steps_saved(folder)[-1] == saved
  assert (folder / 'training.lock').exists()  # Of a process that is gone.

  file.unlink()
  done = trainer_runs.forked(*command, **setting)
  assert done.returncode == 0, done.stdout + done.stderr
  continues = f'continues from the checkpoint of step {saved}\n'
  assert done.stdout.startswith(continues)
  assert trainer_runs.steps_saved(folder) == [10, 12]
  assert len(trainer_runs.losses(folder)) == 12
  assert len(trainer_runs.losses(folder, 'eval_dev')) == 3


def test_a_process_that_hangs_ends_the_other_one(tmp_path):
  """Which waits for it in a collective."""
  folder, file = tmp_path / 'run', tmp_path / 'hangs'
  file.touch()
  setting = _setting(path=str(file), where=hanging.BETWEEN_STEPS, call=7)
  with trainer_runs.two_processes(
    folder,
    tmp_path,
    *(None, None),
    more=(LIMIT, '--input_timeout_minutes=0.2'),
    exp=HANGING,
    **setting,
  ) as both:
    for run in both:
      assert run.end() == 1, run.stderr
  for run in both:
    errors = re.findall('^error: .*$', run.stderr, re.MULTILINE)
    assert errors and re.search(r'no sign of life for [23]\d ', errors[0]), (
      run.stderr
    )
    assert 'Check failed' not in run.stderr
  # Only the first process calls the function between steps.
  assert IN_FUNCTION in both[0].stderr
  assert IN_FUNCTION not in both[1].stderr
  assert trainer_runs.steps_saved(folder) == [5]
  log = (folder / 'log.txt').read_text()
  assert IN_FUNCTION in log and re.search(r'no sign of life for [23]\d ', log)

  file.unlink()
  done = trainer_runs.train(folder, exp=HANGING, **setting)
  assert done.stdout.startswith('continues from the checkpoint of step 5\n')


def test_a_job_that_hangs_ends_and_continues(tmp_path):
  folder, file = tmp_path / 'run', tmp_path / 'hangs'
  settings = dict(num_train_steps=2, eval_interval_steps=0)
  setting = _setting(path=str(file), where=hanging.IN_EVALUATION, call=2)
  trainer_runs.train(folder, exp=HANGING, settings=settings, **setting)
  file.touch()
  command = trainer_runs.flags(folder, LIMIT, '--mode=eval', exp=HANGING)
  done = trainer_runs.forked(*command, settings=settings, **setting)
  _assert_ended(folder, done, 'eval_log.txt')
  file.unlink()
  done = trainer_runs.forked(*command, settings=settings, **setting)
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'training has ended; evaluated the checkpoint of step 2' in done.stdout
