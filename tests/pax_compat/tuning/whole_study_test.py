"""Tests of whole studies, whose trials are runs of a tiny experiment."""

import json

import pytest

from tests.pax_compat import trainer_runs

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
  command = _command(
    folder,
    f'--attr=WAIT_FOR={gate}',
    *('--tune_stopping=median', '--tune_min_trials=1'),
  )
  first = folder / 'trials' / '0001'
  with trainer_runs.start(command, output=tmp_path / '1') as run:
    run.wait_until((tmp_path / 'gate.waits').exists)
    run.wait_until((first / 'checkpoints' / 'manifests' / '5.json').exists)
    run.process.kill()  # SIGKILL: its trial has to find that out.
    run.end()
  assert [t['status'] for t in _trials(folder)] == ['running']
  gate.touch()
  with trainer_runs.start(command, output=tmp_path / '2') as run:
    run.wait_until((first / 'checkpoints' / 'manifests' / '12.json').exists)
    run.wait_until(lambda: 'trial 2 of 2 starts' in run.stdout)
    assert run.end() == 0, run.stdout + run.stderr
    printed = run.stdout
  assert 'study s continues: 0 trials have ended, 1 go on' in printed
  assert 'trial 1 of 2 goes on' in printed
  assert _steps(first) == list(range(1, 13))
  output = (first / 'output.txt').read_text()
  assert 'stopped after step' in output  # When the study was killed.
  ended = {t['number']: t for t in _trials(folder)}
  assert [t['status'] for t in ended.values()] == ['done', 'stopped']
  assert [t['step'] for t in ended.values()] == [12, 5]
  assert _steps(folder / 'trials' / '0002') == [1, 2, 3, 4, 5]
  rows = printed.splitlines()[-2:]
  assert [(r.split()[0], r.split()[-1]) for r in rows] == [
    *(('1', 'done'), ('2', 'stopped'))
  ]
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
  assert done.stdout.splitlines()[-3:] == printed.splitlines()[-3:]
  assert len(_trials(folder)) == lines


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
