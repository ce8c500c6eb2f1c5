"""Tests of `benchmarks.checkpoint_import`: a small one, killed and resumed."""

import json
import subprocess

import pytest

from adaptors.checkpoints import files
from adaptors.lingvo_checkpoint import converting
from benchmarks import checkpoint_import
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

_SIZES = checkpoint_import.Sizes(dims=512, layers=3)  # 18 million parameters.
# A state of 437 MB, so that 50 to 100 MB of libraries, compiled code and
# garbage are negligible.
_LARGE = checkpoint_import.Sizes(dims=1024, layers=6)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Returns a folder with a synthetic Lingvo run."""
  path = tmp_path_factory.mktemp('checkpoint_import')
  experiment = checkpoint_import.experiment(_SIZES, 'SGD')
  checkpoint_import.make(experiment, path / 'old')
  return path


@pytest.mark.slow
def test_memory_of_an_import(tmp_path):
  # In a separate process, without memory of other tests.
  subprocess.run(
    checkpoint_import.command(_LARGE, 'SGD', tmp_path, 'whole'), check=True
  )
  result = json.loads((tmp_path / 'result.json').read_text())
  found = result['import']
  assert found['bytes'] == pytest.approx(4 * _LARGE.parameters, rel=0.01)
  assert 0 < found['risen'] <= found['bytes'] + 2 * found['largest']
  assert result['copy']['bytes'] > found['bytes']
  # The summary has all results.
  resumed = {'left': 2, 'again': 0, 'seconds': 1.0}
  text = checkpoint_import.summary({**result, 'resumed': resumed})
  assert '0 of 2 arrays were made again' in text


@pytest.mark.slow
def test_a_killed_import_resumes(folder):
  new = folder / 'new'
  command = checkpoint_import.command(_SIZES, 'SGD', folder, 'import')
  left = checkpoint_import.kill_half_way(command, new, 4 * _SIZES.parameters)
  assert len(left.found) >= 5
  experiment = checkpoint_import.experiment(_SIZES, 'SGD', folder / 'old')
  resumed = checkpoint_import.resume(
    lambda: converting.to_jax(experiment, 'checkpoint_import', new, print),
    new,
    left,
  )
  assert resumed['left'] == len(left.found) and resumed['again'] == 0
  assert not (new / converting.STAGING).exists()
  assert (new / 'checkpoints' / 'manifests' / '5.json').exists()
  lines = []
  converting.verify(experiment, new, files.newest(folder / 'old'), lines.append)
  assert 'bit by bit' in lines[0]


@pytest.mark.parametrize('parameters', [2e7, 1e9])
def test_sizes(parameters):
  sizes = checkpoint_import.sizes_of(parameters, layers=17)
  assert sizes.parameters == pytest.approx(parameters, rel=0.25)
