"""Whole runs of `pax_compat.trainer.run`, in separate processes."""

import json
import re
import shutil
import signal
import time

import numpy as np
import pytest

from tests.pax_compat import trainer_runs
from tests.pax_compat.launching import flags_of_devices

TRAIN_LOSS = 'train', 'loss'
DEV_LOSS = 'eval_dev', 'loss'
NEXT_LOSS = 'eval_train', 'loss'


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """Returns the folder and the process of an undisturbed run."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  return folder, trainer_runs.train(folder)


def _held(tmp_path, at: int, data: str = 'train', **settings):
  """Returns settings that delay a batch, and the file that releases it."""
  free = tmp_path / 'free'
  return {data: {'wait_at': at, 'wait_for': str(free)}, **settings}, free


def _is_waited_for(file):
  return file.with_name(f'{file.name}.waits').exists()


def _assert_equal_runs(folder, finished):
  """Asserts that a run left the numbers of the undisturbed one, all once."""
  assert trainer_runs.metrics(folder) == trainer_runs.metrics(finished[0])
  trainer_runs.assert_same_state(folder, finished[0], 12)


def test_metrics_of_every_step_are_written(finished):
  folder, _ = finished
  found = trainer_runs.metrics(folder)
  steps = [step for step, split, name in found if (split, name) == TRAIN_LOSS]
  assert steps == list(range(1, 13))
  for which, wanted in ((DEV_LOSS, [5, 10, 12]), (NEXT_LOSS, [5, 10])):
    assert [s for s, split, name in found if (split, name) == which] == wanted
  assert found[12, *TRAIN_LOSS] < found[1, *TRAIN_LOSS] - 0.5
  # The dev set has 8 + 8 + 5 rows of 8 positions, in batches of 8.
  per_batch = found[12, 'eval_dev', 'num_predictions']
  assert per_batch * found[12, 'eval_dev', 'num_batches'] == 21 * 8
  for line in (folder / 'metrics.jsonl').read_text().splitlines():
    assert list(json.loads(line)) == ['step', 'split', 'name', 'value', 'time']


def test_files_of_a_run(finished):
  folder, _ = finished
  assert sorted(path.name for path in folder.iterdir()) == [
    *('batch_shapes.json', 'checkpoints', 'config.txt', 'experiment.json'),
    *('log.txt', 'metrics.jsonl', 'options.json', 'parameters.txt'),
    'summaries',
  ]
  for split in ('train', 'eval_dev', 'eval_train'):
    [events] = (folder / 'summaries' / split).glob('events.out.tfevents.*')
    assert b'loss' in events.read_bytes()
  config = (folder / 'config.txt').read_text()
  assert 'task.model.lm_tpl.model_dims = 8\n' in config
  assert "datasets[1].name = 'dev'\n" in config
  table = (folder / 'parameters.txt').read_text()
  weight = r'^params/lm/softmax/logits_ffn/linear/w +8x16 +128 +'
  assert re.search(weight, table, re.M)
  assert table.endswith('total 764\n')
  mark = json.loads((folder / 'experiment.json').read_text())
  assert mark['name'] == trainer_runs.COUNTING
  assert trainer_runs.steps_saved(folder) == [
    10,
    12,
  ]  # The newest two of 5, 10, 12.
  assert sorted(p.name for p in (folder / 'checkpoints').iterdir()) == [
    *('10', '12', 'manifests'),
  ]


def test_the_output_of_a_run(finished):
  lines = finished[1].stdout.splitlines()
  assert lines[0] == 'starts with 764 new parameters'
  assert lines[1:4] == [
    '1 x cpu; mesh data 1',
    'global batch 8 rows of 8; weights in float32, computed in float32',
    'bytes per device: weights 3.06 kB, optimizer 6.12 kB, together 9.18 kB',
  ]
  # A CPU has no known peak, so there is no MFU.
  assert re.fullmatch(r'step 1  loss \d\.\d+', lines[4])
  number = r'[\d.]+[kMG]?'
  for step, line in enumerate(lines[5:8], 2):
    assert re.fullmatch(
      rf'step {step}/12  loss {number}  {number} steps/s  {number} tokens/s  '
      r'input wait \d+%  ETA \d+(s|m\d\ds)',
      line,
    )
  assert re.match(r'step 12  eval dev: loss \d\.\d+  log_pplx ', lines[-2])
  assert re.search(
    r'time: \d+s since the first start: (\w+ \d+%, )+start \d+%\n',
    finished[1].stderr,
  )
  folder = finished[0]
  assert re.fullmatch(
    r'done: 12 steps in \S+, train step compiled for 1 shape\(s\); the run is'
    rf' in {folder}; curves: tensorboard --logdir={folder}/summaries',
    lines[-1],
  )


# Where a run is killed: in the middle of steps; when a checkpoint was committed
# and the next step has not begun; in an evaluation.
KILLS = {
  'between saves': dict(at=9),
  'after a save': dict(at=5, save_interval_steps=4),
  'in an evaluation': dict(at=2, data='dev', save_interval_steps=4),
}


@pytest.mark.parametrize(
  'where',
  [
    'between saves',
    pytest.param('after a save', marks=pytest.mark.slow),
    pytest.param('in an evaluation', marks=pytest.mark.slow),
  ],
)
def test_a_killed_run_continues_exactly(tmp_path, finished, where):
  folder = tmp_path / 'run'
  settings, free = _held(tmp_path, **KILLS[where])
  command = trainer_runs.flags(folder)
  with trainer_runs.start(command, output=tmp_path, settings=settings) as run:
    run.wait_until(lambda: _is_waited_for(free))
    run.wait_until(lambda: trainer_runs.steps_saved(folder))
    run.process.send_signal(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL
  [saved] = trainer_runs.steps_saved(folder)
  manifest = folder / 'checkpoints' / 'manifests' / f'{saved}.json'
  saved_at, killed_at = manifest.stat().st_mtime, time.time()

  free.touch()
  done = trainer_runs.python(*command, settings=settings)
  assert done.returncode == 0, done.stderr
  expected = f'continues from the checkpoint of step {saved}\n'
  assert done.stdout.startswith(expected)
  _assert_equal_runs(folder, finished)
  _assert_time_is_lost(folder, killed_at - saved_at)


def _assert_time_is_lost(folder, at_least):
  """Asserts that a run reports at least so many seconds as lost."""
  newest = folder / 'checkpoints' / 'manifests' / '12.json'
  saved = json.loads(newest.read_text())['amended']['time_use']
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  *_, last = (
    found
    for found in map(json.loads, lines)
    if found['name'] == 'time_use/lost' and found['step'] == 12
  )
  total = last['time'] - saved['began']
  assert last['value'] * total > at_least - 0.01 > 0
  # Nothing was lost between the last report and this sum.
  counted = sum(saved['seconds'].values())
  assert counted >= (1 - last['value']) * total - 0.01
  fractions = {
    found['name']: found['value']
    for found in map(json.loads, lines)
    if found['name'].startswith('time_use/')
  }
  assert len(fractions) == 6 and all(x >= 0 for x in fractions.values())
  assert sum(fractions.values()) == pytest.approx(1)


# Where a run is stopped: when it waits for a batch of its training data; in an
# evaluation, after another one of the same step.
STOPS = {
  'in steps': (signal.SIGTERM, dict(at=8), [5, 7]),
  'in an evaluation': (signal.SIGINT, dict(at=2, data='dev'), [5]),
}


@pytest.mark.parametrize(
  'where',
  ['in steps', pytest.param('in an evaluation', marks=pytest.mark.slow)],
)
def test_a_stopped_run_saves_and_continues_exactly(tmp_path, finished, where):
  number, held, saved = STOPS[where]
  folder = tmp_path / 'run'
  settings, free = _held(tmp_path, **held)
  command = trainer_runs.flags(folder)
  with trainer_runs.start(command, output=tmp_path, settings=settings) as run:
    run.wait_until(lambda: _is_waited_for(free))
    # At most two steps are not yet printed.
    run.wait_until(lambda: f'step {saved[-1] - 1}/12' in run.stdout)
    run.process.send_signal(number)
    run.wait_until(lambda: f'got signal {number:d}' in run.stderr)
    if where == 'in steps':  # It saves before the batch is there.
      run.wait_until(lambda: trainer_runs.steps_saved(folder) == saved)
    free.touch()
    assert run.end() == 128 + number
  assert trainer_runs.steps_saved(folder) == saved
  *_, last = run.stdout.splitlines()
  assert last == (
    f'stopped after step {saved[-1]}, which is saved; the same command'
    ' continues'
  )
  assert 'Traceback' not in run.stderr

  done = trainer_runs.forked(*command, settings=settings)
  assert done.returncode == 0, done.stderr
  expected = f'continues from the checkpoint of step {saved[-1]}\n'
  assert done.stdout.startswith(expected)
  _assert_equal_runs(folder, finished)


def test_a_finished_run_is_left_alone(tmp_path, finished):
  folder = shutil.copytree(finished[0], tmp_path / 'run')
  before = trainer_runs.contents(folder)
  done = trainer_runs.train(folder)
  assert done.stdout == (
    'all 12 steps are done already; nothing to train. --mode=eval evaluates its'
    ' checkpoints, --mode=decode_once decodes the last one, and'
    ' --set=task.train.num_train_steps=24 goes on training\n'
  )
  assert trainer_runs.contents(folder) == before


def test_a_damaged_checkpoint_is_skipped(tmp_path, finished):
  folder = shutil.copytree(finished[0], tmp_path / 'run')
  trainer_runs.truncate(folder, 12)
  done = trainer_runs.train(folder)
  assert 'continues from the checkpoint of step 10\n' in done.stdout
  assert 'checkpoint 12 is damaged' in done.stderr
  _assert_equal_runs(folder, finished)


def test_each_shape_is_compiled_once(tmp_path):
  cache = tmp_path / 'compiled'
  done = trainer_runs.train(
    tmp_path / 'run',
    settings={'train': {'lengths': [8, 12]}},
    JAX_COMPILATION_CACHE_DIR=str(cache),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
  )
  assert 'compiled for 2 shape(s)' in done.stdout
  assert len(list(cache.glob('jit__train_step-*-cache'))) == 2


def test_eight_devices_train_as_one(tmp_path, finished):
  folder = tmp_path / 'run'
  trainer_runs.train(folder, XLA_FLAGS=flags_of_devices(8))
  _assert_close_losses(folder, finished)


def _stop_two_processes(folder, output) -> list[trainer_runs.Run]:
  """Trains on two processes, and sends a SIGTERM to the second one."""
  # JAX looks for signals once a second. Where the machine is busy it takes more
  # to agree, and the run is not to be over before.
  settings = {'train': {'slow_from': 8}}
  with trainer_runs.two_processes(folder, output, settings, settings) as both:
    both[0].wait_until(lambda: 'step 6/12' in both[0].stdout)
    both[1].process.send_signal(signal.SIGTERM)
    for run in both:
      assert run.end() == 128 + signal.SIGTERM, run.stderr
  return both


def test_two_processes_train_and_stop_as_one(tmp_path, finished):
  folder = tmp_path / 'run'
  both = _stop_two_processes(folder, tmp_path)
  step = trainer_runs.steps_saved(folder)[-1]
  assert 6 < step < 12
  for run in both:
    assert run.stdout.splitlines()[-1] == (
      f'stopped after step {step}, which is saved; the same command continues'
    )
    assert 'Traceback' not in run.stderr
  # The first process alone writes.
  for split in ('train', 'eval_dev', 'eval_train'):
    assert len(list((folder / 'summaries' / split).iterdir())) == 1
  assert not list(folder.glob('*.txt.*'))

  # What two saved, one continues.
  done = trainer_runs.train(folder)
  expected = f'continues from the checkpoint of step {step}\n'
  assert done.stdout.startswith(expected)
  assert len(trainer_runs.metrics(folder)) == len(
    trainer_runs.metrics(finished[0])
  )
  _assert_close_losses(folder, finished)


@pytest.mark.parametrize('fails', [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_fails_ends_the_other_one(tmp_path, fails):
  """Which waits for it in the seventh step."""
  settings = {'train': {'fail_at': 7, 'fails_in': fails}}
  with trainer_runs.two_processes(
    tmp_path / 'run', tmp_path, settings, settings
  ) as both:
    for run in both:
      assert run.end() == 1, run.stderr
  failed, ended = both[fails], both[1 - fails]
  assert 'ArithmeticError: batch 7 cannot be counted' in failed.stderr
  expected = f'error: process {fails} has failed: batch 7 cannot be counted\n'
  assert expected in ended.stderr
  assert 'Traceback' not in ended.stderr


@pytest.mark.slow
def test_an_evaluation_that_fails_in_one_process_loses_no_step(tmp_path):
  """The next save is due after step 5."""
  folder, common = tmp_path / 'run', {'eval_interval_steps': 3}
  fails = common | {'dev': {'fail_at': 2, 'fails_in': 1}}
  with trainer_runs.two_processes(
    folder, tmp_path / 'first', fails, fails
  ) as both:
    assert both[0].end() == 2, both[0].stderr
    assert both[1].end() == 1, both[1].stderr
  saved = 'the evaluation after step 3 failed; the step is saved'
  assert saved in both[0].stdout
  assert 'ArithmeticError: batch 2 cannot be counted' in both[1].stderr
  assert (
    "error: the evaluation of 'dev' has failed in process 1" in both[0].stderr
  )
  assert trainer_runs.steps_saved(folder) == [3]
  with trainer_runs.two_processes(
    folder, tmp_path / 'second', common, common
  ) as both:
    for run in both:
      assert run.end() == 0, run.stderr
  assert len(trainer_runs.losses(folder, 'eval_dev')) == 4


def _assert_close_losses(folder, finished):
  for split, count in (('train', 12), ('eval_dev', 3), ('eval_train', 2)):
    wanted = trainer_runs.losses(finished[0], split)
    assert len(wanted) == count
    np.testing.assert_allclose(
      trainer_runs.losses(folder, split), wanted, rtol=1e-6
    )


def test_the_error_of_an_input_is_printed_and_harms_nothing(tmp_path, finished):
  folder = tmp_path / 'run'
  command = trainer_runs.flags(folder)
  done = trainer_runs.forked(*command, settings={'train': {'fail_at': 7}})
  assert done.returncode == 1
  assert 'ArithmeticError: batch 7 cannot be counted' in done.stderr
  [file] = re.findall(r'File "(.*)", line \d+, in get_next\n', done.stderr)
  assert file.endswith('counting_experiment.py')
  assert trainer_runs.steps_saved(folder) == [5]

  done = trainer_runs.train(folder)
  assert done.stdout.startswith('continues from the checkpoint of step 5\n')
  _assert_equal_runs(folder, finished)


def test_an_input_that_ends_is_an_error(tmp_path):
  folder = tmp_path / 'run'
  done = trainer_runs.forked(
    *trainer_runs.flags(folder), settings={'train': {'end': 7}}
  )
  trainer_runs.assert_mistake(done, "'train' ended at step 7, before step 12")
  assert trainer_runs.steps_saved(folder)[:1] == [5]


_SMALL = 'task.lm.num_trans_layers : 1; task.train.max_steps : '


def test_a_lingvo_experiment_trains_and_continues(tmp_path):
  folder = tmp_path / 'run'
  for steps, first in ((3, 'starts with '), (6, 'continues from the ')):
    override = f'--model_params_override={_SMALL}{steps}'
    done = trainer_runs.train(folder, override, exp=trainer_runs.LINGVO)
    assert done.stdout.startswith(first)
    for name in ('Dev', 'Test'):
      assert f'step {steps}  eval {name}: loss ' in done.stdout
    assert trainer_runs.steps_saved(folder)[-1] == steps
  # Lingvo's reader cannot be positioned; the log line has the alternative.
  assert (
    'LmInput cannot be positioned at batch 3: after this restart it reads a'
    ' fresh shuffle' in done.stderr
  )
  found = trainer_runs.metrics(folder)
  assert (6, *TRAIN_LOSS) in found and (6, 'eval_Dev', 'loss') in found
  assert found[6, 'eval_Test', 'loss'] < found[3, 'eval_Test', 'loss']
  assert 'num_trans_layers : 1' in (folder / 'lingvo_params.txt').read_text()
  assert 'max_steps : 3' in (folder / 'lingvo_params.txt.1').read_text()
