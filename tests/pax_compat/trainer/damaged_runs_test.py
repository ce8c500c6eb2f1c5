"""Runs whose folder is damaged or full."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from pax_compat import errors
from tests.pax_compat import launching, trainer_runs
from tests.pax_compat.checkpoints import damages
from tests.pax_compat.trainer import lines
from tests.pax_compat.trainer_runs import contents, steps_saved

_FIELDS = dict(save_interval_steps=5, eval_interval_steps=0)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Returns the folder of a run with the checkpoints 5 and 10."""
  folder = tmp_path_factory.mktemp('trained') / 'run'
  lines.train(folder, num_train_steps=10, **_FIELDS)
  assert steps_saved(folder) == [5, 10]
  return folder


@pytest.mark.parametrize(
  'case',
  [
    damages.Case('a folder', 'N/about/metadata'),
    damages.Case('input/output error', 'N/state/_METADATA'),
    damages.Case('lost', 'manifests/N.json'),
    damages.Case('an empty JSON object', 'manifests/N.json'),
  ],
)
def test_the_checkpoint_before_is_used(tmp_path, trained, case):
  folder = shutil.copytree(trained, tmp_path / 'run')
  checkpoints = folder / 'checkpoints'
  experiment = lines.Lines(lines.task(num_train_steps=10, **_FIELDS))
  with case.applied(checkpoints):
    experiment.train(folder)
  assert experiment.printed[0] == 'continues from the checkpoint of step 5'
  assert steps_saved(folder) == [5, 10]
  assert (checkpoints / 'damaged' / '10').exists()


def test_a_run_never_starts_afresh_over_checkpoints(tmp_path, trained):
  folder = shutil.copytree(trained, tmp_path / 'run')
  shutil.rmtree(folder / 'checkpoints' / 'manifests')
  before = contents(folder)
  with pytest.raises(errors.UserError, match='none of the 2 checkpoints'):
    lines.train(folder, num_train_steps=10, **_FIELDS)
  assert contents(folder) == before
  (folder / 'experiment.json').unlink()
  with pytest.raises(errors.UserError, match='contains checkpoints, but not'):
    lines.train(folder, num_train_steps=10, **_FIELDS)


# A disk of 400 kB in a namespace of its own, which gets larger afterwards.
_ON_A_DISK = """
  mount -t tmpfs -o size=400k tmpfs "$1" && shift || exit 77
  "$@" --set=task.train.num_train_steps=2000
  echo "status $?"
  mount -o remount,size=50m "$0"
  exec "$@" --set=task.train.num_train_steps=40
"""


@pytest.mark.slow
def test_a_disk_that_metrics_fill(tmp_path):
  """No checkpoint is due before it is full but the first one."""
  disk = tmp_path / 'disk'
  disk.mkdir()
  settings = '--set=task.train.save_interval_steps=10000'
  command = trainer_runs.flags(disk / 'run', settings)
  done = subprocess.run(
    ['unshare', '-Urm', 'bash', '-c', _ON_A_DISK, disk, disk]
    + [sys.executable, *command],
    env=launching.environment(),
    capture_output=True,
    text=True,
    timeout=launching.PATIENCE_SECONDS,
  )
  if done.returncode == 77 or 'unshare' in done.stderr:
    pytest.skip('this user may not mount a disk')
  [line] = re.findall('^error: .*$', done.stderr, re.MULTILINE)
  assert 'No space left on device. Earlier checkpoints are unharmed' in line
  assert 'Traceback' not in done.stderr
  assert 'status 2\n' in done.stdout
  assert 'done: 40 steps' in done.stdout, done.stdout + done.stderr
  assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['summaries/train', 'metrics.jsonl'])
def test_something_else_in_the_place_of_a_file(tmp_path, name):
  place = tmp_path / 'run' / name
  if place.suffix:
    place.mkdir(parents=True)
  else:
    place.parent.mkdir(parents=True)
    place.touch()
  done = trainer_runs.forked(*trainer_runs.flags(tmp_path / 'run'))
  trainer_runs.assert_mistake(done, f'{place} cannot be used: it is a f')


@pytest.mark.slow
def test_a_full_disk(tmp_path):
  """Here, no file may become larger than 60 kB."""
  done = launching.run_script(
    """
    import resource, sys
    from pax_compat import errors
    from tests.pax_compat.trainer import lines
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
      lines.train(sys.argv[1], num_train_steps=2000, save_interval_steps=20,
                  eval_interval_steps=0, summary_interval_steps=1)
    except errors.UserError as e:
      print(e)
    """,
    tmp_path / 'run',
  )
  assert done.returncode == 0, done.stderr
  assert 'File too large' in done.stdout, done.stderr
  assert len(done.stdout.splitlines()) == 1
  saved = steps_saved(pathlib.Path(tmp_path / 'run'))[-1]
  again = lines.train(tmp_path / 'run', num_train_steps=saved + 5)
  expected = f'continues from the checkpoint of step {saved}'
  assert again.printed[0] == expected
