"""The wheel: built from a copy of the sources, installed, and run."""

import email.parser
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import pax_compat
from tests import source_tree
from tests.pax_compat import trainer_runs

# What a wheel is built from.
_FILES = ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE')


def _run(*command, cwd, **env) -> str:
  # The file of constraints may be named relative to the repository.
  inherited = {k: v for k, v in os.environ.items() if k != 'PIP_CONSTRAINT'}
  done = subprocess.run(
    list(map(str, command)),
    cwd=cwd,
    env={**inherited, **env},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """Returns the wheel; nothing is downloaded for it."""
  folder = tmp_path_factory.mktemp('wheel')
  source = folder / 'source'
  source.mkdir()
  for name in _FILES:
    shutil.copy(source_tree.ROOT / name, source)
  # Tests and benchmarks are beside the packages, and must not get into it.
  for name in (*source_tree.PACKAGES, 'tests', 'benchmarks'):
    shutil.copytree(
      source_tree.ROOT / name,
      source / name,
      ignore=shutil.ignore_patterns('__pycache__', 'testdata'),
    )
  pip = (sys.executable, '-m', 'pip', '--disable-pip-version-check')
  _run(
    *(*pip, 'wheel', '--quiet', '--no-deps', '--no-build-isolation'),
    *('--no-index', '--wheel-dir', folder, source),
    cwd=folder,
  )
  [built] = folder.glob('*.whl')
  return built


@pytest.mark.slow
def test_files_of_the_wheel(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  info = {name for name in names if '.dist-info/' in name}
  sources = set(source_tree.python_files(*source_tree.PACKAGES))
  typed = {f'{package}/py.typed' for package in source_tree.PACKAGES}
  data = {'adaptors/lingvo_registry/stock_classes.json'}
  assert names - info == sources | typed | data
  assert any(name.endswith('LICENSE') for name in info)


@pytest.mark.slow
def test_metadata_of_the_wheel(wheel):
  assert wheel.name == f'pax_compat-{pax_compat.__version__}-py3-none-any.whl'
  with zipfile.ZipFile(wheel) as archive:
    [name] = [n for n in archive.namelist() if n.endswith('/METADATA')]
    found = email.parser.Parser().parsestr(archive.read(name).decode())
  assert found['Name'] == 'pax-compat'
  assert found['Version'] == pax_compat.__version__
  assert found['Author'] and found['Summary'] and found['Keywords']
  assert 'Typing :: Typed' in found.get_all('Classifier')
  assert found['Description-Content-Type'] == 'text/markdown'
  assert found.get_payload().startswith('# pax-compat\n')
  assert {'lingvo', 'report', 'test'} <= set(found.get_all('Provides-Extra'))


@pytest.mark.slow
def test_the_installed_wheel_answers(wheel, tmp_path):
  site = tmp_path / 'site'
  _run(
    *(sys.executable, '-m', 'pip', '--disable-pip-version-check', 'install'),
    *('--quiet', '--no-deps', '--no-index', '--target', site, wheel),
    cwd=tmp_path,
  )
  # It is found before the sources, which other tests import.
  env = {'PYTHONPATH': str(site)}
  where = _run(
    *(sys.executable, '-c', 'import pax_compat; print(pax_compat.__file__)'),
    cwd=tmp_path,
    **env,
  )
  assert where.startswith(str(site))
  command = site / 'bin' / 'pax-compat'
  version, *libraries = _run(
    command, '--version', cwd=tmp_path, **env
  ).splitlines()
  assert version == f'pax-compat {pax_compat.__version__}'
  assert any(re.fullmatch(r'  jax [\d.]+', line) for line in libraries)
  listed = _run(command, '--list', cwd=tmp_path, **env)
  for name in (trainer_runs.LINGVO, 'tasks.lm.params.c4.C4Spmd1BAdam4Replicas'):
    assert f'{name} ' in listed
  assert not (tmp_path / 'runs').exists()


def test_the_changelog_begins_with_this_version():
  text = (source_tree.ROOT / 'docs' / 'changelog.md').read_text()
  assert re.search(r'^## ([\d.]+)', text, re.M)[1] == pax_compat.__version__
