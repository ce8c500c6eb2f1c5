"""Tests of which checkpoints are kept, on real files."""

import os
import shutil

import pytest

from pax_compat import errors
from pax_compat.checkpoints import manifests
from pax_compat.runs import files
from tests.pax_compat.checkpoints.states import (
  assert_same,
  make_state,
  open_folder,
  save_steps,
  target_of,
)


def test_newest_are_kept(tmp_path):
  save_steps(tmp_path, 1, 2, 10, 11, max_to_keep=2)
  assert sorted(os.listdir(tmp_path)) == ['10', '11', 'manifests']
  assert sorted(os.listdir(tmp_path / 'manifests')) == ['10.json', '11.json']


def test_a_manifest_goes_before_its_files(tmp_path, monkeypatch):
  order = []
  rmtree = shutil.rmtree

  def record(path, *args, **kwargs):
    if path == tmp_path / '1':
      order.append((tmp_path / 'manifests' / '1.json').exists())
    return rmtree(path, *args, **kwargs)

  monkeypatch.setattr(shutil, 'rmtree', record)
  save_steps(tmp_path, 1, 2, max_to_keep=1)
  assert order == [False]


@pytest.mark.parametrize('subdir', [None, 'old'])
@pytest.mark.parametrize(
  'error', [KeyboardInterrupt, OSError, RuntimeError], ids=lambda e: e.__name__
)
def test_a_deletion_that_is_interrupted_is_completed(
  tmp_path, monkeypatch, error, subdir
):
  def fails(*unused_args):
    raise error

  checkpointer = open_folder(tmp_path, max_to_keep=1, todelete_subdir=subdir)
  checkpointer.save(1, make_state(1), {})
  with monkeypatch.context() as patched:
    patched.setattr(files, 'delete_folder', fails)
    patched.setattr(manifests.Manifests, '_move', fails)
    checkpointer.save(2, make_state(2), {})
    if issubclass(error, Exception):  # The save has succeeded.
      checkpointer.wait()
    else:  # As if the run was killed here.
      with pytest.raises(error):
        checkpointer.wait()
  checkpointer.close(alone=True)
  assert (tmp_path / '1').exists()

  checkpointer = open_folder(tmp_path, max_to_keep=1, todelete_subdir=subdir)
  assert checkpointer.latest_step() == 2
  checkpointer.restore(2, target_of(make_state(2)))
  checkpointer.save(3, make_state(3), {})
  checkpointer.close()
  moved = sorted(os.listdir(tmp_path / subdir)) if subdir else []
  assert moved == (['1', '2'] if subdir else [])
  left = set(os.listdir(tmp_path)) - {subdir}
  assert sorted(left) == ['3', 'manifests']
  assert os.listdir(tmp_path / 'manifests') == ['3.json']


class Clock:
  seconds = 1000.0

  def __call__(self):
    return self.seconds


def _save_every_minute(folder, steps, clock, **kwargs):
  checkpointer = open_folder(folder, max_to_keep=1, clock=clock, **kwargs)
  for step in steps:
    clock.seconds += 60
    checkpointer.save(step, make_state(step), {})
    checkpointer.wait()
  checkpointer.close()


def _steps_in(folder):
  return sorted(int(p.stem) for p in (folder / 'manifests').glob('*.json'))


def test_keep_interval_keeps_some_permanently(tmp_path):
  clock = Clock()
  _save_every_minute(tmp_path, range(1, 9), clock, keep_interval_seconds=150)
  # Saved at 1, 2, 3 ... minutes: 3 minutes after the first, and again.
  assert _steps_in(tmp_path) == [4, 7, 8]
  # A run that continues counts on from there.
  _save_every_minute(tmp_path, range(9, 12), clock, keep_interval_seconds=150)
  assert _steps_in(tmp_path) == [4, 7, 10, 11]
  # What was kept is kept, whatever comes later.
  _save_every_minute(tmp_path, range(12, 16), clock)
  assert _steps_in(tmp_path) == [4, 7, 10, 15]
  checkpointer = open_folder(tmp_path)
  state, _ = checkpointer.restore(4, target_of(make_state(4)))
  assert_same(state, make_state(4))
  checkpointer.close()


def test_multiples_of_some_steps_are_kept_permanently(tmp_path):
  options = dict(keep_interval_steps=4, keep_interval_seconds=400)
  _save_every_minute(tmp_path, range(0, 12), clock := Clock(), **options)
  # For its time: the eighth after the first, whatever is kept for its steps.
  assert _steps_in(tmp_path) == [0, 4, 7, 8, 11]
  _save_every_minute(tmp_path, range(12, 18), clock, **options)
  assert _steps_in(tmp_path) == [0, 4, 7, 8, 12, 14, 16, 17]


def test_a_clock_that_was_wrong_does_not_end_the_interval(tmp_path):
  options, clock = dict(keep_interval_seconds=150), Clock()
  _save_every_minute(tmp_path, [1], clock, **options)
  clock.seconds += 1e9
  _save_every_minute(tmp_path, [2], clock, **options)
  clock.seconds -= 1e9
  _save_every_minute(tmp_path, range(3, 10), clock, **options)
  assert _steps_in(tmp_path) == [2, 6, 9]


def test_a_short_run_keeps_the_newest_only(tmp_path):
  _save_every_minute(
    tmp_path, range(1, 4), Clock(), keep_interval_seconds=12 * 3600.0
  )
  assert _steps_in(tmp_path) == [3]


def test_max_to_keep_must_be_positive(tmp_path):
  with pytest.raises(errors.UserError, match='max_to_keep is 0'):
    open_folder(tmp_path, max_to_keep=0)
