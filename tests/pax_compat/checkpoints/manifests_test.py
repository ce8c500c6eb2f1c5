"""Checkpoints that are damaged, unfinished or among strays, on real files."""

import errno
import json
import os
import resource
import shutil
import signal
import threading
import types

import numpy as np
import orbax.checkpoint as ocp
import pytest

from pax_compat import errors
from pax_compat.checkpoints import checksums, manifests
from tests.pax_compat import launching, trainer_runs
from tests.pax_compat.checkpoints import damages
from tests.pax_compat.checkpoints.states import (
  assert_same,
  make_state,
  open_folder,
  save_steps,
  target_of,
)
from tests.pax_compat.trainer_runs import contents


def _largest_file(folder):
  files = [p for p in folder.rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def _truncate(path):
  path.write_bytes(path.read_bytes()[:-7])


def _flip_bit(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


@pytest.fixture
def log(monkeypatch):
  """The lines that were logged."""
  lines = []

  def note(text, *args):
    lines.append(text % args)

  # Only ours: Orbax logs through the same module.
  monkeypatch.setattr(
    manifests, 'logging', types.SimpleNamespace(info=note, warning=note)
  )
  return lines


@pytest.mark.parametrize('damage', [_truncate, _flip_bit, os.unlink])
def test_damaged_newest_falls_back(tmp_path, log, damage):
  save_steps(tmp_path, 1, 2)
  victim = _largest_file(tmp_path / '2')
  damage(victim)
  checkpointer = open_folder(tmp_path)
  assert checkpointer.latest_step() == 1
  report = [line for line in log if line.startswith('checkpoint 2 is damaged')]
  assert len(report) == 1
  assert str(victim) in report[0]
  assert 'expected' in report[0] and 'found' in report[0]
  with pytest.raises(errors.UserError, match='checkpoint 2 is damaged'):
    checkpointer.restore(2, target_of(make_state()))
  with pytest.raises(errors.UserError, match='checkpoint 2 is damaged'):
    checkpointer.extra(2)
  restored, _ = checkpointer.restore(1, target_of(make_state()))
  checkpointer.close()
  assert_same(restored, make_state(1))


def test_any_flipped_bit_is_found(tmp_path):
  save_steps(tmp_path, 1)
  checkpointer = open_folder(tmp_path)
  files = [p for p in (tmp_path / '1').rglob('*') if p.is_file()]
  assert len(files) > 5
  for path in files:
    good = path.read_bytes()
    _flip_bit(path)
    with pytest.raises(errors.UserError, match=path.name):
      checkpointer.latest_step()
    path.write_bytes(good)
  assert checkpointer.latest_step() == 1
  checkpointer.close()


@pytest.mark.slow
def test_each_damage_of_each_file_is_found(tmp_path):
  damages.make(tmp_path / 'good')
  wrong, count = [], 0
  for case, first, second in damages.outcomes(
    tmp_path / 'good', tmp_path / 'damaged'
  ):
    count += 1
    is_found = first[0] == damages.OLD and f'/{damages.NEW}' in first[1]
    is_error = second[1].startswith('none of the 1 checkpoints')
    if not is_found or not is_error:
      wrong.append((case, first, second))
  assert not wrong
  assert count > 300


def test_all_damaged_is_an_error(tmp_path):
  save_steps(tmp_path, 1, 2)
  for step in '12':
    _truncate(_largest_file(tmp_path / step))
  (tmp_path / 'manifests' / '2.json').write_text('{"files"')
  checkpointer = open_folder(tmp_path)
  with pytest.raises(errors.UserError, match='none of the 2 checkpoints') as e:
    checkpointer.latest_step()
  checkpointer.close()
  assert str(tmp_path / 'manifests' / '2.json') in str(e.value)


def test_training_on_replaces_damaged_and_later_steps(tmp_path):
  save_steps(tmp_path, 1, 2, 3)
  _truncate(_largest_file(tmp_path / '2'))
  _truncate(_largest_file(tmp_path / '3'))
  checkpointer = open_folder(tmp_path, max_to_keep=2)
  assert checkpointer.latest_step() == 1
  checkpointer.restore(1, target_of(make_state()))
  assert checkpointer.save(2, make_state(22), {})
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  restored, _ = checkpointer.restore(2, target_of(make_state()))
  checkpointer.close()
  assert_same(restored, make_state(22))
  assert sorted(os.listdir(tmp_path)) == ['1', '2', 'damaged', 'manifests']
  # What is damaged is never deleted.
  assert sorted(os.listdir(tmp_path / 'damaged')) == [
    *('2', '2.json', '3', '3.json'),
  ]


def test_other_files_are_ignored(tmp_path, log):
  save_steps(tmp_path, 1)
  (tmp_path / '99').mkdir()
  (tmp_path / '5').mkdir()
  (tmp_path / 'notes' / 'x').mkdir(parents=True)
  (tmp_path / 'README').write_text('mine')
  (tmp_path / 'manifests' / 'other.json').write_text('{}')
  checkpointer = open_folder(tmp_path, max_to_keep=1)
  assert checkpointer.latest_step() == 1
  assert any('99' in line and 'never committed' in line for line in log)
  restored, _ = checkpointer.restore(1, target_of(make_state()))
  assert_same(restored, make_state(1))
  assert checkpointer.save(5, make_state(5), {})
  checkpointer.close()
  assert {'5', '99', 'notes', 'README'} <= set(os.listdir(tmp_path))
  again = open_folder(tmp_path)
  assert again.latest_step() == 5
  restored, _ = again.restore(5, target_of(make_state()))
  again.close()
  assert_same(restored, make_state(5))


def test_a_lost_manifest_is_no_checkpoint_that_was_never_committed(
  tmp_path, log
):
  save_steps(tmp_path, 1, 2)
  manifest = tmp_path / 'manifests' / '2.json'
  manifest.unlink()
  checkpointer = open_folder(tmp_path)
  assert checkpointer.latest_step() == 1
  assert log == [f'checkpoint 2 is damaged: {manifest}: file not found']
  with pytest.raises(errors.UserError, match='no checkpoint of step 2.*: 1'):
    checkpointer.restore(2, target_of(make_state()))
  assert checkpointer.save(2, make_state(2), {})
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  checkpointer.close()
  assert os.listdir(tmp_path / 'damaged') == ['2']


def test_all_manifests_are_lost(tmp_path):
  save_steps(tmp_path, 1, 2)
  shutil.rmtree(tmp_path / 'manifests')
  before = contents(tmp_path)
  checkpointer = open_folder(tmp_path)
  with pytest.raises(errors.UserError, match='none of the 2 checkpoints'):
    checkpointer.latest_step()
  checkpointer.close()
  assert contents(tmp_path) == before


def hang_in_a_save(folder, where):
  """Saves step 1, then stops for ever in the middle of step 2.

  Args:
    folder: of the checkpoints.
    where: `orbax` for inside Orbax, else between Orbax and our commit.
  """
  checkpointer = open_folder(folder)
  checkpointer.save(1, make_state(1), {})
  checkpointer.wait()

  def hang(*unused_args, **unused_kwargs):
    print('hanging', flush=True)
    threading.Event().wait()

  if where == 'orbax':
    ocp.AsyncCheckpointer._save_step_metadata = hang
  else:
    checksums.of_files = hang
  checkpointer.save(2, make_state(2), {})
  checkpointer.wait()


@pytest.mark.parametrize(
  'where', ['commit', pytest.param('orbax', marks=pytest.mark.slow)]
)
def test_sigkill_in_the_middle_of_a_save(
  tmp_path, tmp_path_factory, log, where
):
  command = [*launching.calling(hang_in_a_save), tmp_path, where]
  output = tmp_path_factory.mktemp('output')
  with trainer_runs.start(command, output=output) as saving:
    saving.wait_until(lambda: saving.stdout == 'hanging\n')
    saving.process.send_signal(signal.SIGKILL)
    assert saving.end() == -signal.SIGKILL
  leftover = '2.orbax-checkpoint-tmp' if where == 'orbax' else '2'
  assert sorted(os.listdir(tmp_path)) == ['1', leftover, 'manifests']

  checkpointer = open_folder(tmp_path)
  assert checkpointer.latest_step() == 1
  assert f'skipping {tmp_path / leftover}: it was never committed' in log
  checkpointer.restore(1, target_of(make_state()))
  if where == 'orbax':  # another step sweeps it up
    assert checkpointer.save(3, make_state(3), {})
    checkpointer.wait()
    assert sorted(os.listdir(tmp_path)) == ['1', '3', 'manifests']
  else:
    assert checkpointer.save(2, make_state(2), {})
    checkpointer.wait()
    assert checkpointer.latest_step() == 2
  checkpointer.close()


def test_a_file_that_cannot_be_read_is_not_committed(tmp_path, monkeypatch):
  read = checksums._of_file

  def of_file(path):
    if path.name == '_CHECKPOINT_METADATA':
      return {'error': os.strerror(errno.EIO)}
    return read(path)

  checkpointer = open_folder(tmp_path)
  with monkeypatch.context() as patched:
    patched.setattr(checksums, '_of_file', of_file)
    checkpointer.save(1, make_state(1), {})
    with pytest.raises(errors.UserError, match='of step 1 cannot be written.*'):
      checkpointer.wait()
  assert checkpointer.latest_step() is None
  assert checkpointer.save(1, make_state(1), {})
  assert checkpointer.latest_step() == 1
  checkpointer.close()


def test_same_step_after_a_killed_save(tmp_path):
  (tmp_path / '2.orbax-checkpoint-tmp' / 'state').mkdir(parents=True)
  save_steps(tmp_path, 2)
  assert sorted(os.listdir(tmp_path)) == ['2', 'manifests']


def save_on_a_full_disk(folder):
  """Saves steps: 1 fails, which saving 2 raises, and then all succeed."""
  checkpointer = open_folder(folder)
  rng = np.random.default_rng(0)
  state = {'w': rng.normal(size=200_000).astype(np.float32)}
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # "disk full"
  checkpointer.save(1, state, {})
  try:
    checkpointer.save(2, state, {})
  except Exception as e:
    print('RAISED', type(e).__name__)
  resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
  assert checkpointer.latest_step() is None
  assert checkpointer.save(2, state, {})
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  assert checkpointer.save(3, state, {})
  checkpointer.close()


def test_a_failed_save_is_raised_once_and_the_next_works(tmp_path):
  done = launching.run_function(save_on_a_full_disk, tmp_path)
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('RAISED') == 1
  assert sorted(os.listdir(tmp_path)) == ['2', '3', 'manifests']


def test_a_failed_commit_is_raised(tmp_path, monkeypatch):
  checkpointer = open_folder(tmp_path)
  save = checkpointer.save

  def full(*unused_args):
    raise OSError(errno.ENOSPC, 'No space left on device', '1.json')

  with monkeypatch.context() as patched:
    patched.setattr(manifests.Manifests, 'commit', full)
    save(1, make_state(1), {})
    with pytest.raises(errors.UserError) as e:
      checkpointer.wait()
  assert 'of step 1 cannot be written' in str(e.value)
  assert 'No space left on device (1.json). Earlier' in str(e.value)
  assert os.listdir(tmp_path) == ['manifests']  # Nothing takes up space.
  assert not os.listdir(tmp_path / 'manifests')
  assert save(1, make_state(1), {})
  checkpointer.close()
  assert json.loads((tmp_path / 'manifests' / '1.json').read_text())
