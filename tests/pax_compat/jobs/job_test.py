"""Tests of jobs that evaluate and decode checkpoints, in this process."""

import errno
import json
import pathlib
import shutil

import pytest

from pax_compat import checkpoints, errors
from pax_compat.experiments import resolved
from pax_compat.jobs import job, job_options
from pax_compat.runs import job_lock
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines

STEPS = [2, 4, 6]
_TRAIN = dict(
  num_train_steps=6,
  save_interval_steps=2,
  eval_interval_steps=2,
  eval_skip_train=True,
  decode_interval_steps=2,
)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Returns the folder of a run that evaluated each of its checkpoints."""
  folder = tmp_path_factory.mktemp('trained') / 'run'
  lines.train(folder, **_TRAIN)
  return folder


@pytest.fixture
def folder(trained, tmp_path):
  return shutil.copytree(trained, tmp_path / 'run')


def _run(folder, mode='eval', experiment=None, name='lines', **options):
  """Runs a job; returns the lines it prints after the first two."""
  made = resolved.resolve(
    experiment or lines.Lines(lines.task(**_TRAIN)), name=name
  )
  printed = []
  job.run(
    made,
    job_log_dir=str(folder),
    job=job_options.JobOptions(mode=mode, **options),
    print_line=printed.append,
  )
  return printed[2:]


def _written(folder: pathlib.Path, file: str, split: str) -> list:
  """Returns the lines of a split as (step, name, value), in their order."""
  read = map(json.loads, (folder / file).read_text().splitlines())
  return [
    (x['step'], x['name'], x['value']) for x in read if x['split'] == split
  ]


def _steps_of(printed: list[str], kind: str) -> list[int]:
  return [int(line.split()[1]) for line in printed if f'  {kind} ' in line]


def test_each_checkpoint_is_evaluated_once_as_in_training(folder):
  before = trainer_runs.contents(folder)
  printed = _run(folder)
  assert _steps_of(printed, 'eval') == STEPS
  assert printed[-1] == (
    'training has ended; evaluated 3 checkpoints; metrics are in'
    f' {folder / "eval_metrics.jsonl"}'
  )
  # Bit for bit, without a file of the run being touched.
  own = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  assert own == _written(folder, 'metrics.jsonl', 'eval_dev') and own
  after = trainer_runs.contents(folder)
  assert {name: after[name] for name in before} == before
  new = {name for name in after.keys() - before.keys() if after[name]}
  assert {name.rpartition('.tfevents')[0] or name for name in new} == {
    'eval_log.txt',
    'eval_metrics.jsonl',
    'eval_steps.json',
    'summaries/eval_test_dev/events.out',
  }

  assert _run(folder) == [
    'training has ended; evaluated no checkpoint, as all were before; metrics'
    f' are in {folder / "eval_metrics.jsonl"}'
  ]
  assert _written(folder, 'eval_metrics.jsonl', 'eval_test_dev') == own

  # One that is asked for is evaluated again, and written once.
  printed = _run(folder, steps=(4,))
  assert _steps_of(printed, 'eval') == [4]
  assert 'evaluated the checkpoint of step 4; metrics' in printed[-1]
  again = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  assert sorted(again) == sorted(own)


def test_only_what_is_measured_again_is_replaced(folder):
  _run(folder, 'decode', also_evaluates=True)
  own = _written(folder, 'decode_metrics.jsonl', 'eval_test_dev')
  decoded = _written(folder, 'decode_metrics.jsonl', 'decode_test_few')
  assert {step for step, *_ in own} == set(STEPS) and decoded
  _run(folder, 'decode_once', steps=(4,))
  assert _written(folder, 'decode_metrics.jsonl', 'eval_test_dev') == own
  again = _written(folder, 'decode_metrics.jsonl', 'decode_test_few')
  assert sorted(again) == sorted(decoded)


def test_what_was_to_be_measured_again_is_not_done(folder, monkeypatch):
  _run(folder)
  own = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')

  def fails(*args):
    if args[-1] == 4:
      raise OSError(errno.EIO, 'Input/output error')
    return read(*args)

  read = job.reading.read
  with monkeypatch.context() as patched:
    patched.setattr(job.reading, 'read', fails)
    with pytest.raises(OSError, match='Input/output'):
      _run(folder, steps=(2, 4))
  assert _steps_of(_run(folder), 'eval') == [4]
  again = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  assert sorted(again) == sorted(own)


def test_what_a_killed_job_left_is_completed(folder):
  _run(folder)
  own = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  # It was killed after it wrote half of step 4, and before it recorded it.
  file, record = folder / 'eval_metrics.jsonl', folder / 'eval_steps.json'
  written = file.read_text().splitlines(keepends=True)
  file.write_text(''.join(written[: len(written) // 2]) + written[-1][:20])
  done = json.loads(record.read_text())
  record.write_text(json.dumps({'2': done['2']}))
  assert _steps_of(_run(folder), 'eval') == [4, 6]
  assert _written(folder, 'eval_metrics.jsonl', 'eval_test_dev') == own


def test_a_run_that_went_back_is_evaluated_again(folder):
  _run(folder)
  before = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  for step in (4, 6):
    shutil.rmtree(folder / 'checkpoints' / str(step))
    (folder / 'checkpoints' / 'manifests' / f'{step}.json').unlink()
  lines.train(folder, **_TRAIN | {'save_interval_steps': 4})
  assert trainer_runs.steps_saved(folder) == [2, 4, 6]
  printed = _run(folder)
  assert printed[0].startswith('the checkpoint of step 4 is another one')
  assert _steps_of(printed, 'eval') == [4, 6]
  after = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  assert after == before  # Each once, with the same numbers here.


def test_a_checkpoint_that_is_deleted_meanwhile(folder, monkeypatch):
  read = job.reading.read

  def deletes(task_program, watch, step):
    if step == 2:  # Between the decision to take it and its files.
      shutil.rmtree(folder / 'checkpoints' / '2')
    if step == 4:  # In the middle of its files.
      monkeypatch.setattr(job.reading.model_vars, 'restore', fails)
    return read(task_program, watch, step)

  restore = job.reading.model_vars.restore

  def fails(*args, **kwargs):
    monkeypatch.setattr(job.reading.model_vars, 'restore', restore)
    (folder / 'checkpoints' / 'manifests' / '4.json').unlink()
    shutil.rmtree(folder / 'checkpoints' / '4')
    return restore(*args, **kwargs)

  monkeypatch.setattr(job.reading, 'read', deletes)
  printed = _run(folder)
  assert printed[:2] == [
    'the checkpoint of step 2 was deleted before it was read',
    'the checkpoint of step 4 was deleted before it was read',
  ]
  assert _steps_of(printed, 'eval') == [6]
  assert printed[-1].startswith(
    'training has ended; evaluated the checkpoint of step 6, 2 deleted before'
  )


def test_an_error_that_is_not_of_the_files_is_raised(folder, monkeypatch):
  def fails(*unused, **kwargs):
    raise RuntimeError('out of memory')

  monkeypatch.setattr(job.reading.model_vars, 'restore', fails)
  with pytest.raises(RuntimeError, match='out of memory'):
    _run(folder)


def test_deleted_and_damaged_checkpoints(folder):
  shutil.rmtree(folder / 'checkpoints' / '2')
  (folder / 'checkpoints' / 'manifests' / '2.json').unlink()
  trainer_runs.truncate(folder, 4)
  with pytest.raises(errors.UserError) as e:
    _run(folder)
  assert str(e.value).startswith(
    'the checkpoint of step 4 could not be read:\n  step 4: checkpoint 4 is'
    ' damaged: '
  )
  own = _written(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  assert {step for step, *_ in own} == {6}  # Which came after it.
  with pytest.raises(errors.UserError, match='checkpoint 4 is damaged'):
    _run(folder, steps=(4,))
  with pytest.raises(
    errors.UserError, match='no checkpoint of step 2; the nea'
  ):
    _run(folder, steps=(2,))


def test_decoding_jobs(folder):
  trained = {
    path.name: path.read_text()
    for path in (folder / 'decode_out' / 'few').iterdir()
  }
  assert len(trained) == 3
  shutil.rmtree(folder / 'decode_out')
  printed = _run(folder, mode='decode_once')
  assert _steps_of(printed, 'decode') == [6]
  assert printed[-1].startswith('decoded the checkpoint of step 6; metrics')
  assert [p.name for p in (folder / 'decode_out' / 'few').iterdir()] == [
    'decode_out_6_shard_0.jsonl'
  ]
  # One that follows does not decode it again.
  printed = _run(folder, mode='decode', also_evaluates=True)
  assert _steps_of(printed, 'decode') == [2, 4]
  assert _steps_of(printed, 'eval') == STEPS
  decoded = {
    path.name: path.read_text()
    for path in (folder / 'decode_out' / 'few').iterdir()
  }
  assert decoded == trained
  found = _written(folder, 'decode_metrics.jsonl', 'decode_test_few')
  own = _written(folder, 'metrics.jsonl', 'decode_few')
  assert sorted(found) == sorted(own) and own
  evaluated = _written(folder, 'decode_metrics.jsonl', 'eval_test_dev')
  assert evaluated == _written(folder, 'metrics.jsonl', 'eval_dev')
  assert list((folder / 'summaries' / 'decode_test_few').glob('events.*'))
  # Several steps that are asked for.
  printed = _run(folder, mode='decode_once', steps=(4, 2))
  assert _steps_of(printed, 'decode') == [4, 2]


def test_checkpoints_of_another_folder(trained, tmp_path):
  before = trainer_runs.contents(trained)
  for given in (trained, trained / 'checkpoints'):
    out = tmp_path / given.name
    _run(out, restore_dir=str(given), name='other')
    own = _written(out, 'eval_metrics.jsonl', 'eval_test_dev')
    assert own == _written(trained, 'metrics.jsonl', 'eval_dev')
  assert trainer_runs.contents(trained) == before


def test_moving_averages_are_used(tmp_path):
  task = lines.task(
    **_TRAIN | dict(num_train_steps=3, eval_use_ema_states=True)
  )
  task.train.learner.optimizer.ema_decay = 0.9
  experiment = lines.Lines(task)
  experiment.train(tmp_path)
  task.train.eval_use_ema_states = False  # Jobs use them anyway, as in Pax.
  _run(tmp_path, experiment=experiment)
  own = _written(tmp_path, 'eval_metrics.jsonl', 'eval_test_dev')
  assert own == _written(tmp_path, 'metrics.jsonl', 'eval_dev') and own


def test_errors(trained, tmp_path):
  for options, message in (
    (
      dict(mode='decode_once'),
      'nothing does not exist; expected the folder of',
    ),
    (dict(steps=(2,)), 'nothing does not exist; expected the folder of a run'),
  ):
    with pytest.raises(errors.UserError, match=message):
      _run(tmp_path / 'nothing', **options)
  assert not (tmp_path / 'nothing').exists()
  (tmp_path / 'empty').mkdir()
  with pytest.raises(errors.UserError, match='has no checkpoint; expected the'):
    _run(tmp_path / 'empty', mode='decode_once')
  with pytest.raises(
    errors.UserError, match='no inference runner; expected ta'
  ):
    _run(trained, mode='infer')
  with job_lock.held(tmp_path / 'empty', 'eval'):
    with pytest.raises(
      errors.UserError, match='in use: the eval process .* wri'
    ):
      _run(tmp_path / 'empty')
  with pytest.raises(errors.UserError, match='belongs to the experiment lines'):
    _run(trained, name='other')
  with pytest.raises(
    errors.UserError,
    match='2 is one checkpoint; expected the folder of its run, .*_step=2',
  ):
    _run(tmp_path / 'one', restore_dir=str(trained / 'checkpoints' / '2'))

  class Nothing(lines.Lines):
    def datasets(self):
      return super().datasets()[:1]

  with pytest.raises(errors.UserError, match=r'lines has no eval_datasets\(\)'):
    _run(trained, experiment=Nothing(lines.task(**_TRAIN)))
  # A model with other weights.
  wide = lines.Lines(lines.task(**_TRAIN))
  wide.task = lambda: _wider(lines.task(**_TRAIN))
  with pytest.raises(
    errors.UserError, match='checkpoint 2 .* does not fit the'
  ):
    _run(trained, experiment=wide)


class WideLine(lines.Line):
  """Has one more weight."""

  def setup(self):
    super().setup()
    self.create_variable('v', lines.WeightHParams([2]))


def _wider(task):
  task.model = WideLine.config()
  return task


def test_the_optimizer_is_not_read(folder, monkeypatch):
  read = []
  stored = checkpoints.StoredCheckpoint
  original = stored.read

  def recorded(self, wanted):
    read.append(wanted)
    return original(self, wanted)

  monkeypatch.setattr(stored, 'read', recorded)
  _run(folder, steps=(6,))
  [paths] = read
  assert {path.partition('.')[0] for path in paths} == {'mdl_vars'}
