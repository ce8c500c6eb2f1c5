"""Runs whose folder is damaged or full."""

import pathlib
import shutil

import pytest

from pax_compat import errors
from tests.pax_compat import launching
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
