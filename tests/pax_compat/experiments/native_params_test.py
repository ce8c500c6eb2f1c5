"""Tests of installed packages of native experiments."""

import sys

import pytest

from pax_compat import errors, experiment_registry
from pax_compat.experiment_sources import SourceOptions
from pax_compat.experiments import native_params

_MODULE = '''
"""Experiments of a package."""
from pax_compat import base_experiment, experiment_registry


@experiment_registry.register
class One(base_experiment.BaseExperiment):
  """The first.

  More of it.
  """

  def task(self):
    return None

  def datasets(self):
    return []


class Base(One):
  """Not registered."""


@experiment_registry.register(allow_overwrite=True)
class Two(Base):
  """The second."""
'''


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
  """An installed distribution that names a package of experiments."""
  monkeypatch.setattr(experiment_registry, '_experiments', {})
  monkeypatch.syspath_prepend(tmp_path)
  info = tmp_path / 'mine-1.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: mine\n')
  (info / 'entry_points.txt').write_text(
    f'[{native_params.GROUP}]\ntasks.words.params = mine_native.params\n'
  )
  params = tmp_path / 'mine_native' / 'params'
  params.mkdir(parents=True)
  for folder in (params, params.parent):
    (folder / '__init__.py').write_text('')
  (params / 'small.py').write_text(_MODULE)
  (params / 'other.py').write_text('raise AssertionError("imported")')
  before = set(sys.modules)
  yield info
  for name in set(sys.modules) - before:
    if name.startswith('mine_native'):
      del sys.modules[name]


def test_names_are_read_without_importing():
  listed = experiment_registry.names(SourceOptions())
  assert listed['tasks.words.params.small.One'] == 'The first.'
  assert listed['tasks.words.params.small.Two'] == 'The second.'
  assert 'tasks.words.params.small.Base' not in listed
  assert 'mine_native' not in sys.modules


@pytest.mark.parametrize(
  'name',
  [
    'tasks.words.params.small.Two',
    'tasks.words.small.Two',
    'words.params.small.Two',
    'small.Two',
    'mine_native.params.small.Two',
  ],
)
def test_an_experiment_is_found_by_all_its_names(name):
  found = experiment_registry.find(name, SourceOptions())
  assert type(found).__name__ == 'Two'
  assert list(experiment_registry._experiments) == [
    'tasks.words.params.small.One',
    'tasks.words.params.small.Two',
  ]


def test_an_unknown_name_is_not_found():
  assert experiment_registry.find('small.Three', SourceOptions()) is None


def test_a_package_that_does_not_exist(site):
  text = f'[{native_params.GROUP}]\ntasks.words.params = mine_native.nothing\n'
  (site / 'entry_points.txt').write_text(text)
  with pytest.raises(errors.UserError, match='mine_native.nothing` of mine'):
    native_params.names()
