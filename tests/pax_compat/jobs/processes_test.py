"""Jobs and the run that they follow, each in processes of its own."""

import contextlib
import json
import pathlib
import shutil
import signal

import numpy as np
import pytest

from tests.pax_compat import trainer_runs
from tests.pax_compat.launching import free_port

_KEEPS_ALL = {'save_max_to_keep': 100}


def _values(folder: pathlib.Path, file: str, split: str) -> dict:
  """Returns the values of a split by (step, name); none is there twice."""
  found = {}
  for line in (folder / file).read_text().splitlines():
    x = json.loads(line)
    if x['split'] == split:
      key = x['step'], x['name']
      assert key not in found, f'{key} is there twice'
      found[key] = x['value']
  return found


def _evaluated(run: trainer_runs.Run) -> list[int]:
  """Returns the steps that a job has printed metrics of."""
  lines = run.stdout.splitlines()
  return [int(x.split()[1]) for x in lines if '  eval dev: ' in x]


def _job(folder, output, mode='eval', **settings):
  return trainer_runs.start(
    trainer_runs.flags(folder, f'--mode={mode}'),
    output=output,
    settings=_KEEPS_ALL | settings,
  )


def _held(file: pathlib.Path, at: int) -> dict:
  return {'wait_at': at, 'wait_for': str(file)}


def _is_waited_for(file: pathlib.Path) -> bool:
  return file.with_name(f'{file.name}.waits').exists()


def test_a_job_follows_a_run_that_trains_meanwhile(tmp_path):
  """It starts before the run, is stopped, and misses and repeats nothing."""
  folder = tmp_path / 'run'
  in_train, in_dev = tmp_path / 'train', tmp_path / 'dev'
  train = trainer_runs.start(
    trainer_runs.flags(folder),
    output=tmp_path / 'output',
    settings=_KEEPS_ALL | {'train': _held(in_train, at=8)},
  )
  first = _job(folder, tmp_path / 'first', dev=_held(in_dev, at=2))
  with train, first:
    # It is stopped in the middle of the evaluation of the first checkpoint.
    first.wait_until(lambda: _is_waited_for(in_dev))
    first.process.send_signal(signal.SIGTERM)
    first.wait_until(lambda: 'got signal 15' in first.stderr)
    in_dev.touch()  # An input that reads is not interrupted.
    assert first.end() == 128 + signal.SIGTERM, first.stderr
    assert 'Traceback' not in first.stderr
    assert first.stdout.splitlines()[-1] == (
      'stopped; the same command continues with what is not done yet'
    )
    assert not _evaluated(first)
    with _job(folder, tmp_path / 'second') as second:
      second.wait_until(lambda: _evaluated(second) == [5])
      second.process.send_signal(signal.SIGTERM)  # While it waits.
      assert second.end() == 128 + signal.SIGTERM, second.stderr
    with _job(folder, tmp_path / 'third') as third:
      in_train.touch()
      assert train.end() == 0, train.stderr
      assert third.end() == 0, third.stderr
  assert trainer_runs.steps_saved(folder) == [5, 10, 12]
  assert _evaluated(third) == [10, 12]
  assert third.stdout.splitlines()[-1].startswith(
    'training has ended; evaluated 2 checkpoints; metrics are in '
  )
  # Bit for bit as in training, each once.
  own = _values(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  assert own == _values(folder, 'metrics.jsonl', 'eval_dev')
  assert {step for step, _ in own} == {5, 10, 12}


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp('finished') / 'run'
  trainer_runs.train(folder, settings=_KEEPS_ALL)
  return folder


def test_two_processes_evaluate_as_one(tmp_path, finished):
  folder = shutil.copytree(finished, tmp_path / 'run')
  trainer_runs.truncate(folder, 10)
  with contextlib.ExitStack() as stack:
    port = stack.enter_context(free_port())
    both = [
      stack.enter_context(
        trainer_runs.start(
          trainer_runs.flags(
            folder,
            '--mode=eval',
            f'--server_addr=localhost:{port}',
            '--num_hosts=2',
            f'--host_idx={index}',
          ),
          output=tmp_path / str(index),
          settings=_KEEPS_ALL,
        )
      )
      for index in range(2)
    ]
    for run in both:
      # The damaged checkpoint is reported, after all others were evaluated.
      assert run.end() == 2, run.stderr
      assert 'Traceback' not in run.stderr
  assert 'step 10: checkpoint 10 is damaged' in both[0].stderr
  own = _values(folder, 'eval_metrics.jsonl', 'eval_test_dev')
  wanted = _values(folder, 'metrics.jsonl', 'eval_dev')
  assert {step for step, _ in own} == {5, 12}
  for key, value in own.items():
    np.testing.assert_allclose(value, wanted[key], rtol=1e-6)


def test_mistakes(tmp_path, finished):
  for flags, words in (
    (('--mode=decode_once',), ('has no decode_datasets()',)),
    (
      ('--mode=eval', '--restore_checkpoint_step=7'),
      ('has no checkpoint of step 7; the nearest are: 5, 10, 12',),
    ),
    (('--restore_checkpoint_step=7',), ('not for --mode=train',)),
  ):
    done = trainer_runs.main(*trainer_runs.flags(finished, *flags)[2:])
    trainer_runs.assert_mistake(done, *words)
