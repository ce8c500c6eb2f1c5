"""Tests of when a run saves, and of what an evaluation that fails leaves."""

import json
import shutil
import time

import pytest

from pax_compat import errors
from pax_compat.metrics import time_use
from pax_compat.trainer import actions, run_options, saving
from tests.on_processes import evaluations
from tests.pax_compat import launching
from tests.pax_compat.trainer import lines
from tests.pax_compat.trainer_runs import state, steps_saved


class Recorder:
  """A checkpointer that records its calls."""

  def __init__(self):
    self.saved = []
    self.amended = []

  def save(self, step, state, extra):
    self.saved.append((step, *_without_time(json.loads(json.dumps(extra)))))

  def amend_later(self, step, extra):
    self.amended.append((step, *_without_time(extra)))

  def wait(self):
    pass


def _without_time(extra):
  assert extra.pop(time_use.TIME_USE)['began'] <= time.time()
  return extra.values()


def _context(step=1, **fields):
  return actions.StepContext(
    **dict(step=step, is_last_step=False, is_stopping=False, state=None)
    | fields
  )


def _save(**fields):
  recorder = Recorder()
  fields = dict(steps=5, seconds=None, before=lambda: None) | fields
  return recorder, saving.Save(recorder, **fields)


def test_a_checkpoint_records_how_its_run_ended():
  flushed = []
  recorder, save = _save(before=lambda: flushed.append(1))
  for step, fields in (
    (4, {}),
    (5, {}),
    (6, dict(is_stopping=True, evaluations_pending=True)),
    (7, dict(stops_early=True)),
  ):
    save(_context(step, **fields))
  assert recorder.saved == [
    (5, 5, False, False, False),
    (6, 6, True, False, False),
    (7, 7, False, True, True),
  ]
  assert len(flushed) == 3 and not recorder.amended


def test_what_is_evaluated_is_saved_before():
  recorder, save = _save()
  for step in (4, 5, 10):
    context = _context(step)
    save.before_measuring(context)
    assert recorder.saved[-1:] == (
      [(step, step, True, False, False)] if step > 4 else []
    )
    context.stops_early = step == 10
    save(context)
  assert recorder.amended == [(5, False, False, False), (10, False, True, True)]
  assert [step for step, *_ in recorder.saved] == [5, 10]


def test_a_failed_evaluation_leaves_its_step(caplog):
  printed = []
  recorder, save = _save(print_line=printed.append)
  save.after_failure(_context(3), KeyError('seqlen'))
  assert recorder.saved == [(3, 3, True, False, False)]
  assert printed == [
    'the evaluation after step 3 failed; the step is saved, and the same'
    ' command goes on with that evaluation'
  ]

  def fails():
    raise OSError('disk full')

  recorder.wait = fails
  save.after_failure(_context(4), KeyError('seqlen'))
  assert 'step 4 cannot be saved, either: OSError: disk full' in caplog.text
  assert len(printed) == 1


@pytest.mark.parametrize(
  'folder, saved', [('/runs/a', []), ('gs://bucket/runs/a', [3])]
)
def test_nothing_is_saved_on_a_full_disk(folder, saved):
  recorder, save = _save()
  recorder.directory = folder
  error = errors.UserError('the outputs cannot be written')
  error.__cause__ = OSError(28, 'No space left on device')
  save.after_failure(_context(3), error)
  assert [step for step, *_ in recorder.saved] == saved


def test_a_save_is_due_after_some_time(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(saving.time, 'monotonic', lambda: now[0])
  recorder, save = _save(steps=100, seconds=60.0)
  for step in range(1, 104):
    now[0] += 0.9
    save(_context(step))
  # The clock starts again with each save.
  assert [step for step, *_ in recorder.saved] == [67, 100]


def test_the_initial_state_is_saved_if_asked(tmp_path):
  options = run_options.RunOptions(saves_initial_state=True)
  experiment = lines.Lines(lines.task(num_train_steps=2))
  experiment.train(tmp_path, options=options)
  assert steps_saved(tmp_path) == [0, 2]
  weights = state(tmp_path, 0)['mdl_vars.params.w']
  assert weights.tolist() == [0.5] * lines.DIMS
  # A run that is killed before its next save continues from there.
  for step in ('2', 'manifests/2.json'):
    path = tmp_path / 'checkpoints' / step
    shutil.rmtree(path) if path.is_dir() else path.unlink()
  again = lines.Lines(lines.task(num_train_steps=2))
  again.train(tmp_path, options=options)
  assert again.printed[0] == 'continues from the checkpoint of step 0'
  assert steps_saved(tmp_path) == [0, 2]


class Fails(lines.Lines):
  """Its decoded outputs cannot be processed."""

  def task(self):
    task = super().task()
    task.model = FailingLine.config()
    return task


class FailingLine(lines.Line):
  FAILS = True

  def process_decode_out(self, input_obj, decode_out):
    if type(self).FAILS:
      raise KeyError('seqlen')
    return super().process_decode_out(input_obj, decode_out)


@pytest.mark.parametrize('at', [4, 3])
def test_no_step_is_lost_if_decoding_fails(tmp_path, monkeypatch, at):
  """At the last step, at which a save is due; or at another one."""
  fields = dict(num_train_steps=4, decode_interval_steps=at)
  experiment = Fails(lines.task(**fields))
  with pytest.raises(KeyError, match='seqlen'):
    experiment.train(tmp_path)
  assert steps_saved(tmp_path) == [at]
  assert (
    f'the evaluation after step {at} failed; the step is saved'
    in (experiment.printed[-1])
  )
  # The same command goes on there, and fails there.
  again = Fails(lines.task(**fields))
  with pytest.raises(KeyError, match='seqlen'):
    again.train(tmp_path)
  assert again.printed[0] == f'continues from the checkpoint of step {at}'
  # What is repaired measures that step once, and trains on.
  monkeypatch.setattr(FailingLine, 'FAILS', False)
  done = Fails(lines.task(**fields))
  done.train(tmp_path)
  assert lines.steps(tmp_path, 'decode_few', 'num_decode_steps') == sorted(
    {at, 4}
  )
  assert lines.steps(tmp_path, 'eval_dev') == [4]
  last = Fails(lines.task(**fields))
  last.train(tmp_path)
  assert last.printed[0].startswith('all 4 steps are done already')


@pytest.mark.slow
def test_no_step_is_lost_if_one_of_two_processes_fails(tmp_path):
  """Decoding the second of five steps, of which only the last is to be saved.

  In the first process outputs are processed, and in the second one an input
  fails. Without errors the run ends.
  """
  first, second = launching.run_on_processes(
    evaluations.fail_alone, 2, args=[tmp_path]
  )
  saved = (
    'the evaluation after step 2 failed; the step is saved, and the same'
    ' command goes on with that evaluation'
  )
  work = "UserError: the decoding of 'few' has failed in process"
  assert first.splitlines() == [
    *("KeyError: 'seqlen'", saved),
    *('ZeroDivisionError: no words', saved),
    *(f'{work} 1; see the log there', saved),
  ]
  assert second.splitlines() == [
    *(f'{work} 0; see the log there', saved),
    *(f'{work} 0; see the log there', saved),
    *('LookupError: no second batch', saved),
  ]
  for place in ('process', 'end', 'input'):
    assert steps_saved(tmp_path / place) == [2]
  assert steps_saved(tmp_path) == [5]
  assert lines.steps(tmp_path, 'decode_few', 'num_decode_steps') == [2, 4, 5]
