"""Tests of the life of a study, with trials that end at once."""

import json
import signal

import pytest

from pax_compat import errors
from pax_compat.tuning import processes, records, study
from tests.pax_compat.tuning import fake_trials


@pytest.fixture(autouse=True)
def fast(monkeypatch):
  monkeypatch.setattr(processes, 'SECONDS_BETWEEN_LOOKS', 0.01)


def _loss(given) -> float:
  return float(given['X']) + (0.5 if given['Y'] == 'b' else 0)


def _succeed(folder, given):
  fake_trials.write_metrics(folder, [9.0, _loss(given)])
  return 0


def _run(plan, folder):
  lines = []
  trials = study.run(plan, job_log_dir=str(folder), print_line=lines.append)
  return trials, lines


def test_a_study(tmp_path):
  starter = fake_trials.Starter(_succeed)
  trials, lines = _run(fake_trials.plan(starter), tmp_path / 's')
  assert [(t.metric, t.step, t.status) for t in trials.values()] == [
    (loss, 10, 'done') for loss in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
  ]
  assert [one['job_log_dir'][-4:] for one in starter.started] == [
    f'000{i}' for i in range(1, 7)
  ]
  assert {one['trial_of'] for one in starter.started} == {str(tmp_path / 's')}
  assert lines[0] == 'trial 1 of 6 starts: X=1 Y=a'
  assert lines[3] == (
    'trial 2 of 6: eval_dev/loss 1.5 at step 10; best 1, of trial 1'
  )
  table = lines[-1].splitlines()
  assert table[0].split() == 'trial X Y eval_dev/loss steps status'.split()
  assert table[1].split() == '1 1 a 1 10 done'.split()
  recorded = json.loads((tmp_path / 's' / 'study.json').read_text())
  assert recorded['status'] == 'done'
  assert recorded['best']['values'] == {'X': '1', 'Y': 'a'}
  again, lines = _run(fake_trials.plan(starter), tmp_path / 's')
  assert again == trials and len(starter.started) == 6
  assert lines[-1].splitlines() == table


def test_the_largest_and_the_best_value(tmp_path):
  def act(folder, given):
    fake_trials.write_metrics(folder, [5 + _loss(given), _loss(given)])
    return 0

  plan = fake_trials.plan(
    fake_trials.Starter(act), goal='max', value='best', num_trials=4
  )
  trials, lines = _run(plan, tmp_path / 's')
  assert [t.metric for t in trials.values()] == [6.0, 6.5, 7.0, 7.5]
  assert lines[-1].splitlines()[1].split()[0] == '4'


def test_workers(tmp_path):
  starter = fake_trials.Starter(_succeed)
  plan = fake_trials.plan(starter, workers=2, env={'DEVICE': 'gpu{worker}'})
  trials, _ = _run(plan, tmp_path / 's')
  assert len(trials) == 6
  assert starter.environments[:2] == [{'DEVICE': 'gpu0'}, {'DEVICE': 'gpu1'}]


def test_trials_that_fail_are_recorded_and_not_repeated(tmp_path):
  def act(folder, given):
    if given['X'] == '2':
      (folder / 'output.txt').write_text('a line\nerror: no memory\n  at x\n')
      return 1
    return _succeed(folder, given)

  starter = fake_trials.Starter(act)
  trials, lines = _run(fake_trials.plan(starter), tmp_path / 's')
  assert [t.status for t in trials.values()].count('failed') == 2
  assert trials[3].error == 'no memory'
  assert any('trial 3 of 6 failed: no memory' in line for line in lines)
  assert lines[-1].splitlines()[-1].split() == '4 2 b - - failed'.split()
  _run(fake_trials.plan(starter), tmp_path / 's')
  assert len(starter.started) == 6


def test_nan_is_the_worst(tmp_path):
  def act(folder, given):
    fake_trials.write_metrics(folder, [9.0])
    if given['X'] == '1':
      line = {'step': 10, 'split': 'eval_dev', 'name': 'loss', 'value': None}
      with open(folder / 'metrics.jsonl', 'a') as f:
        f.write(json.dumps(line | {'note': 'nan'}) + '\n')
    return 0

  plan = fake_trials.plan(fake_trials.Starter(act))
  _, lines = _run(plan, tmp_path / 's')
  order = [row.split()[0] for row in lines[-1].splitlines()[1:]]
  assert order == ['3', '4', '5', '6', '1', '2']
  again, _ = _run(plan, tmp_path / 's')  # Reads NaN.
  assert again[1].metric != again[1].metric


def test_a_first_trial_that_cannot_start_ends_the_study(tmp_path):
  def act(folder, given):
    (folder / 'output.txt').write_text('error: there is no such field\n')
    return 2

  starter = fake_trials.Starter(act)
  with pytest.raises(
    errors.UserError, match='first one, cannot start: there is no such field'
  ):
    _run(fake_trials.plan(starter), tmp_path / 's')
  assert len(starter.started) == 1
  # The corrected command may use the folder.
  starter = fake_trials.Starter(_succeed)
  plan = fake_trials.plan(starter, ('attr:X=4,5', 'attr:Y=a,b'))
  trials, _ = _run(plan, tmp_path / 's')
  assert [t.values['X'] for t in trials.values()] == ['4', '4', '5', '5']


@pytest.mark.parametrize('status', [0, 2])
def test_a_metric_that_trials_do_not_have(tmp_path, status):
  def act(folder, given):
    fake_trials.write_metrics(folder, [1.0], name='log_pplx')
    return status

  plan = fake_trials.plan(fake_trials.Starter(act), metric='eval_dev/pplx')
  with pytest.raises(errors.UserError) as e:
    _run(plan, tmp_path / 's')
  assert str(e.value) == (
    '--tune_metric=eval_dev/pplx: the trials lack this metric; did you mean:'
    ' eval_dev/log_pplx? They have eval_dev/log_pplx'
  )


def test_a_study_that_is_stopped_stops_its_trials_and_continues(tmp_path):
  before = signal.getsignal(signal.SIGTERM)
  act = fake_trials.interrupted(
    lambda folder, given: None if given['X'] == '2' else _succeed(folder, given)
  )
  starter = fake_trials.Starter(act)
  with pytest.raises(study.Stopped) as e:
    _run(fake_trials.plan(starter), tmp_path / 's')
  assert e.value.signal_number == signal.SIGTERM
  assert signal.getsignal(signal.SIGTERM) is before
  assert len(starter.started) == 3
  with open(tmp_path / 's' / 'trials.jsonl', 'a') as f:
    f.write('{"number": 4, "val')  # As a kill leaves it.
  starter = fake_trials.Starter(_succeed)
  trials, lines = _run(fake_trials.plan(starter), tmp_path / 's')
  assert lines[0] == 'study s continues: 2 trials have ended, 1 go on'
  assert lines[1] == 'trial 3 of 6 goes on: X=2 Y=a'
  assert [(s['X'], s['Y']) for s in starter.started] == [
    *(('2', 'a'), ('2', 'b'), ('3', 'a'), ('3', 'b'))
  ]
  assert {t.status for t in trials.values()} == {'done'}


def test_a_trial_that_is_killed_goes_on_once(tmp_path):
  statuses = iter([-9, 0, -9, 143])

  def act(folder, given):
    _succeed(folder, given)
    return next(statuses)

  plan = fake_trials.plan(fake_trials.Starter(act), ('attr:X=1,2', 'attr:Y=a'))
  trials, _ = _run(plan, tmp_path / 's')
  assert [t.status for t in trials.values()] == ['done', 'failed']
  assert trials[2].error == 'its process ended with status 143'


def test_a_folder_has_one_study(tmp_path):
  starter = fake_trials.Starter(_succeed)
  _run(fake_trials.plan(starter), tmp_path / 's')
  for changed, message in (
    (fake_trials.plan(starter, seed=3), 'seed was 0 and is 3. Give another'),
    (fake_trials.plan(starter, study='t'), 'belongs to the experiment study s'),
  ):
    with pytest.raises(errors.UserError, match=message):
      _run(changed, tmp_path / 's')
  assert len(starter.started) == 6
  path = tmp_path / 's' / records.STUDY_FILE
  path.write_text('{}')
  with pytest.raises(errors.UserError, match='is damaged'):
    _run(fake_trials.plan(starter), tmp_path / 's')
