"""Tests of whole studies, whose trials are runs of a tiny experiment."""

import json
import time

import pytest

from pax_compat.tuning import metric_values, records, stopping_rules
from tests.pax_compat import trainer_runs
from tests.pax_compat.tuning import fake_trials

_MODULE = 'tests.pax_compat.tuning.tuned_experiment'


def _command(folder, *more: str) -> list[str]:
  return trainer_runs.flags(
    folder,
    '--study=s',
    f'--import_modules={_MODULE}',
    *more,
    exp=f'{_MODULE}.Swept',
  )


def _trials(folder) -> list[dict]:
  path = folder / 'trials.jsonl'
  text = path.read_text() if path.exists() else ''
  return [json.loads(line) for line in text.splitlines()]


def _steps(folder) -> list[int]:
  """Returns the steps of a trial's training metrics, in their order."""
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [
    line['step']
    for line in map(json.loads, lines)
    if line['split'] == 'train' and line['name'] == 'loss'
  ]


@pytest.mark.slow
def test_a_killed_study_continues(tmp_path):
  folder, gate = tmp_path / 'study', tmp_path / 'gate'
  command = _command(folder, f'--attr=WAIT_FOR={gate}', '--num_trials=1')
  first = folder / 'trials' / '0001'
  with trainer_runs.start(command, output=tmp_path / '1') as run:
    run.wait_until((tmp_path / 'gate.waits').exists)
    run.wait_until((first / 'checkpoints' / 'manifests' / '5.json').exists)
    run.process.kill()  # SIGKILL: its trial has to find that out.
    run.end()
  assert [t['status'] for t in _trials(folder)] == ['running']
  deadline = time.monotonic() + trainer_runs.PATIENCE_SECONDS
  while 'got signal' not in (first / 'output.txt').read_text():
    assert time.monotonic() < deadline
    time.sleep(0.02)
  gate.touch()
  with trainer_runs.start(command, output=tmp_path / '2') as run:
    assert run.end() == 0, run.stdout + run.stderr
    printed = run.stdout
  assert 'study s continues: 0 trials have ended, 1 go on' in printed
  assert 'trial 1 of 1 goes on' in printed
  assert _steps(first) == list(range(1, 13))
  output = (first / 'output.txt').read_text()
  assert 'stopped after step' in output  # When the study was killed.
  ended = {t['number']: t for t in _trials(folder)}
  assert [t['status'] for t in ended.values()] == ['done']
  assert [t['step'] for t in ended.values()] == [12]
  row = printed.splitlines()[-1].split()
  assert (row[0], row[-2:]) == ('1', ['12', 'done'])
  best = json.loads((folder / 'study.json').read_text())['best']
  assert best['values'] == {
    'LEARNING_RATE,WAIT_AT': 'LEARNING_RATE=0.01 WAIT_AT=9'
  }
  # A trial is a run: its folder is enough to find its experiment.
  options = json.loads((first / 'options.json').read_text())
  assert 'LEARNING_RATE=0.01' in options['attributes']
  lines = len(_trials(folder))
  done = trainer_runs.main(*command[2:])
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[-2:] == printed.splitlines()[-2:]
  assert len(_trials(folder)) == lines


@pytest.mark.slow
def test_sub_experiments_run_one_after_the_other(tmp_path):
  folder, exp = tmp_path / 'study', f'{_MODULE}.Scaled'
  imported = f'--import_modules={_MODULE}'
  command = trainer_runs.flags(
    folder,
    imported,
    '--study=s',
    '--num_trials=1',
    '--tune=attr:LEARNING_RATE=0.01',
    exp=exp,
  )
  done = trainer_runs.main(*command[2:])
  assert done.returncode == 0, done.stderr
  starts = [line for line in done.stdout.splitlines() if 'starts' in line]
  assert [line.split(', ')[1] for line in starts] == ['1x', '2x']
  values = []
  for name, rate in (('1x', 0.01), ('2x', 0.02)):
    run = folder / 'trials/0001' / name
    assert f'learning_rate = {rate}\n' in (run / 'config.txt').read_text()
    values.append(metric_values.series(run, 'eval_dev/loss')[-1][1])
  (trial,) = (t for t in _trials(folder) if t['status'] == 'done')
  assert trial['metric'] == pytest.approx(sum(values))
  # One of them alone, and another mode of its folder.
  flags = trainer_runs.flags(
    run, imported, '--sub_experiment=2x', '--mode=eval', exp=exp
  )
  alone = trainer_runs.main(*flags[2:], '--attr=LEARNING_RATE=0.01')
  assert alone.returncode == 0, alone.stderr
  wrong = trainer_runs.main(*flags[2:], '--sub_experiment=3x')
  trainer_runs.assert_mistake(wrong, "has no '3x'; expected one of '1x', '2x'")


@pytest.mark.slow
def test_a_trial_ends_early(tmp_path):
  plan = fake_trials.plan(
    None, stopping=records.Stopping(rule='median', min_trials=1)
  )
  done = records.Trial(number=1, values={}, status=records.DONE)
  fake_trials.write_metrics(records.folder_of(tmp_path, 1), [0.1, 0.1])
  records.TrialsFile(tmp_path).write(done)
  records.write_study(tmp_path, plan.settings, None, records.RUNNING)
  folder = records.folder_of(tmp_path, 2)
  command = trainer_runs.flags(folder, f'--trial_of={tmp_path}')[2:]
  run = trainer_runs.main(*command)
  assert run.returncode == 0, run.stderr
  assert 'stops early after step 5' in run.stdout
  assert _steps(folder) == [1, 2, 3, 4, 5]
  reason = stopping_rules.stopped(folder)['reason']
  assert reason.endswith('worse than the median 0.1 of 1 trials')
  again = trainer_runs.main(*command)
  assert 'was stopped early after step 5 already' in again.stdout


@pytest.mark.slow
def test_mistakes_print_one_line(tmp_path):
  """The wiring: `planning_test` has the mistakes."""
  for more, message in (
    (['--tune=attr:WAIT_ATT=1,2'], 'did you mean: WAIT_AT'),
    (['--mode=eval'], '--study is for --mode=train'),
    (['--num_trials=0'], '--num_trials is 0; expected at least 1'),
    (['--tune_env=X'], '--tune_env=X: expected NAME=value'),
  ):
    done = trainer_runs.main(*_command(tmp_path / 's', *more)[2:])
    trainer_runs.assert_mistake(done, message)
  done = trainer_runs.main(
    *trainer_runs.flags(tmp_path / 's', '--tune=attr:X=1,2')[2:]
  )
  trainer_runs.assert_mistake(done, '--tune is for a study; expected --study=N')
  assert not (tmp_path / 's').exists()
