"""Tests of actions, without a run where possible."""

import gc

import pytest

from pax_compat.tasks.early_stopping import RunningMode
from pax_compat.trainer import actions
from tests.pax_compat.trainer import lines


def _context(step=1, **fields):
  return actions.StepContext(
    **dict(step=step, is_last_step=False, is_stopping=False, state=None)
    | fields
  )


@pytest.mark.parametrize(
  ('fields', 'ends'),
  [
    ({}, False),
    (dict(is_last_step=True), True),
    (dict(is_stopping=True), True),
    (dict(stops_early=True), True),
  ],
)
def test_the_last_step_of_a_run(fields, ends):
  assert _context(**fields).is_last_step_of_run == ends


def test_garbage_is_collected_at_its_interval_only():
  class Cycle:
    alive = 0

    def __init__(self):
      self.me = self
      Cycle.alive += 1

    def __del__(self):
      Cycle.alive -= 1

  assert gc.isenabled()
  with actions.CollectGarbage(3) as collect:
    left = []
    for step in range(1, 8):
      Cycle()
      collect(_context(step))
      left.append(Cycle.alive)
      assert not gc.isenabled()
  assert left == [1, 2, 0, 1, 2, 0, 1]
  assert gc.isenabled() and not gc.get_freeze_count()


class Asked:
  """Records its calls, and returns True at a step."""

  def __init__(self, stop_at=None):
    self.stop_at = stop_at
    self.calls = []

  def __call__(self, metrics, mode, step, is_last_ckpt, checkpoint_path):
    self.calls.append((metrics, mode, step, is_last_ckpt, checkpoint_path))
    return step == self.stop_at


def _train(folder, asked, **train):
  task = lines.task(
    **dict(num_train_steps=6, eval_interval_steps=2, save_interval_steps=2)
    | train
  )
  if asked is not None:  # A function, unlike an object, is not cloned.
    task.early_stopping_fn = lambda *args: asked(*args)
  experiment = lines.Lines(task)
  experiment.train(folder)
  return experiment.printed


def test_the_arguments_of_an_early_stopping_function(tmp_path):
  asked = Asked()
  _train(tmp_path / 'run', asked, decode_interval_steps=4)
  assert [call[2:] for call in asked.calls] == [
    (step, step == 6, tmp_path / 'run' / 'checkpoints') for step in (2, 4, 6)
  ]
  both = RunningMode.TRAIN | RunningMode.EVAL
  assert [call[1] for call in asked.calls] == [
    both,
    both | RunningMode.DECODE,
    both | RunningMode.DECODE,
  ]
  for metrics, _, step, *_ in asked.calls:
    for split in ('eval_dev', 'eval_train'):
      written = lines.metrics(tmp_path / 'run', split)
      assert metrics[f'{split}/loss'] == written[step, 'loss']
    assert {'train/loss', 'train/learning/lr'} <= metrics.keys()
    assert ('decode_few/num_decode_steps' in metrics) == (step != 2)


def test_a_run_that_stops_early(tmp_path):
  folder = tmp_path / 'run'
  printed = _train(folder, Asked(stop_at=4))
  assert printed[-2].startswith(
    'stops early after step 4, because the early_stop'
  )
  assert lines.steps(folder, 'eval_dev') == [2, 4]
  manifests = (folder / 'checkpoints' / 'manifests').iterdir()
  assert {path.stem for path in manifests} == {'2', '4'}
  # It is over, as long as somebody could have stopped it.
  [line] = _train(folder, Asked())
  assert line.startswith('the run was stopped early after step 4 already; ')
  printed = _train(folder, None)
  assert printed[0] == 'continues from the checkpoint of step 4'
  assert lines.steps(folder, 'eval_dev') == [2, 4, 6]


def test_at_the_last_step_there_is_nothing_to_stop(tmp_path):
  printed = _train(tmp_path / 'run', Asked(stop_at=6))
  assert not any('stops early' in line for line in printed)
