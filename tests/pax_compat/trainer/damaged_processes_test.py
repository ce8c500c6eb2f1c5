"""Damaged checkpoints, as the command line meets them in a new process."""

import shutil

import pytest

from tests.pax_compat import trainer_runs
from tests.pax_compat.checkpoints import damages

pytestmark = pytest.mark.slow

# Damages to the last checkpoint, each with what the log says.
CASES = {
  damages.Case('last byte lost', '12/state/manifest.ocdbt'): 'manifest.ocdbt',
  damages.Case('a folder', '12/about/metadata'): 'about/metadata',
  damages.Case('a link to nothing', '12/state'): 'state/',
  damages.Case('lost', 'manifests/12.json'): '12.json',
  damages.Case('empty', 'manifests/12.json'): '12.json',
  damages.Case('noise', 'manifests/12.json'): '12.json',
}


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp('finished') / 'run'
  trainer_runs.train(folder)
  assert trainer_runs.steps_saved(folder) == [10, 12]
  return folder


@pytest.mark.parametrize(
  ('case', 'words'), CASES.items(), ids=[f'{c.damage} {c.path}' for c in CASES]
)
def test_the_checkpoint_before_is_used(tmp_path, finished, case, words):
  folder = shutil.copytree(finished, tmp_path / 'run')
  with case.applied(folder / 'checkpoints'):
    done = trainer_runs.train(folder)
  assert done.stdout.startswith('continues from the checkpoint of step 10\n')
  assert 'Traceback' not in done.stderr
  # One line says what is wrong; others may say what becomes of it.
  lines = [x for x in done.stderr.splitlines() if 'checkpoint 12 is' in x]
  assert len(lines) == 1 and words in lines[0], done.stderr
  trainer_runs.assert_same_state(folder, finished, 12)


@pytest.mark.parametrize('mode', ['train', 'eval'])
def test_without_an_intact_one_the_command_ends(tmp_path, finished, mode):
  folder = shutil.copytree(finished, tmp_path / 'run')
  for step in (10, 12):
    trainer_runs.truncate(folder, step)
  before = trainer_runs.contents(folder / 'checkpoints')
  done = trainer_runs.main(*trainer_runs.flags(folder, f'--mode={mode}')[2:])
  words = {
    'train': 'none of the 2 checkpoints',
    'eval': 'damaged',
  }[mode]
  trainer_runs.assert_mistake(done, words)
  assert trainer_runs.contents(folder / 'checkpoints') == before
