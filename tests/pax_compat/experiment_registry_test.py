"""Tests of native experiments by name."""

import sys

import pytest

from pax_compat import (
  base_experiment,
  errors,
  experiment_registry,
  tasks_lib,
)
from pax_compat.experiment_sources import SourceOptions

_MODULE = '''
"""An experiment of a user."""
from pax_compat import base_experiment, experiment_registry


@experiment_registry.register
class {name}(base_experiment.BaseExperiment):
  """First line.

  More.
  """

  def task(self):
    return None

  def datasets(self):
    return []
'''


@pytest.fixture(autouse=True)
def registry(monkeypatch):
  """An empty registry."""
  monkeypatch.setattr(experiment_registry, '_experiments', {})


@pytest.fixture
def package(tmp_path, monkeypatch):
  """Returns a function that writes modules of a fresh, importable package."""
  monkeypatch.syspath_prepend(tmp_path)
  before = set(sys.modules)

  def write(module: str, text: str):
    path = tmp_path.joinpath(*module.split('.')).with_suffix('.py')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

  yield write
  for name in set(sys.modules) - before:
    if name.partition('.')[0].startswith('mine'):
      del sys.modules[name]


def _experiment(module, name='Exp'):
  cls = type(
    name,
    (base_experiment.BaseExperiment,),
    {
      '__module__': module,
      'task': lambda self: None,
      'datasets': lambda self: [],
    },
  )
  return cls


def _find(name):
  return experiment_registry.find(name, SourceOptions())


@pytest.mark.parametrize(
  'name',
  [
    'tasks.lm.params.c4.Exp',
    'lm.params.c4.Exp',
    'c4.Exp',
    'Exp',
    'tasks.lm.c4.Exp',
    'lm.c4.Exp',
  ],
)
def test_full_partial_and_elided_names(name):
  cls = experiment_registry.register(_experiment('tasks.lm.params.c4'))
  experiment_registry.register(_experiment('tasks.lm.params.c4', 'Other'))
  found = _find(name)
  assert type(found) is cls
  assert _find(name) is not found


@pytest.mark.parametrize('name', ['xp', '4.Exp', 'exp', 'c4', 'params.Exp'])
def test_other_names_are_not_native(name):
  experiment_registry.register(_experiment('tasks.params.c4'))
  assert _find(name) is None


@pytest.mark.parametrize('name', ['hyperExp', 'a.hyperExp'])
def test_only_a_whole_component_params_may_be_omitted(name):
  experiment_registry.register(_experiment('a.hyperparams'))
  assert _find(name) is None


def test_an_ambiguous_name_lists_its_matches():
  for module in ('b.m', 'a.m'):
    experiment_registry.register(_experiment(module))
  with pytest.raises(errors.UserError, match='any of a.m.Exp, b.m.Exp; give'):
    _find('m.Exp')
  assert type(_find('a.m.Exp')).__module__ == 'a.m'
  with pytest.raises(ValueError, match='any of a.m.Exp, b.m.Exp; give'):
    experiment_registry.get('m.Exp')


def test_a_full_name_wins_over_suffixes_of_longer_ones():
  short = experiment_registry.register(_experiment('m'))
  experiment_registry.register(_experiment('a.m'))
  assert type(_find('m.Exp')) is short


def test_a_name_is_registered_once():
  experiment_registry.register(_experiment('m'))
  again = _experiment('m')
  with pytest.raises(errors.UserError, match="'m.Exp' exists already"):
    experiment_registry.register(again)
  experiment_registry.register(allow_overwrite=True)(again)
  assert type(_find('m.Exp')) is again
  # The same class may come twice.
  assert experiment_registry.register(again) is again


@pytest.mark.parametrize('thing', [int, 'Exp', lambda: None])
def test_only_experiments_are_registered(thing):
  with pytest.raises(errors.UserError, match='subclass of BaseExperiment'):
    experiment_registry.register(thing)


def test_names_come_with_the_first_line_of_their_docstrings():
  described = _experiment('m', 'Described')
  described.__doc__ = 'First line.\n\nMore.'
  experiment_registry.register(described)
  names = experiment_registry.names(SourceOptions())
  assert names['m.Described'] == 'First line.'


def test_the_module_in_a_name_is_imported_on_demand(package):
  package('mine.c4', _MODULE.format(name='Exp'))
  assert type(_find('mine.c4.Exp')).__name__ == 'Exp'


def test_a_module_that_registers_nothing_is_not_imported(package):
  package('mine.other', 'raise RuntimeError("was imported")\n')
  assert _find('mine.other.Exp') is None
  assert 'mine.other' not in sys.modules


@pytest.mark.parametrize('name', ['no.such.Exp', 'mine.no.Exp', 'sys.Exp'])
def test_modules_that_do_not_exist_are_not_an_error(package, name):
  package('mine.c4', _MODULE.format(name='Exp'))
  assert _find(name) is None


def test_a_module_that_raises_is_an_error_with_its_location(package):
  package('mine.c4', _MODULE.format(name='Exp') + '\n\nundefined\n')
  with pytest.raises(errors.UserError) as e:
    _find('mine.c4.Exp')
  line = len(_MODULE.splitlines()) + 3
  assert "module 'mine.c4' cannot be imported: NameError" in str(e.value)
  assert f'c4.py:{line}' in str(e.value)


def test_a_package_that_raises_is_an_error_with_its_location(package):
  package('mine_broken.__init__', '\nraise RuntimeError("boom")\n')
  package('mine_broken.c4', _MODULE.format(name='Exp'))
  with pytest.raises(errors.UserError) as e:
    _find('mine_broken.c4.Exp')
  assert 'cannot be imported: RuntimeError: boom' in str(e.value)
  assert '__init__.py:2' in str(e.value)


def test_an_imported_module_registers_its_experiments(package):
  package('mine.c4', _MODULE.format(name='Exp'))
  assert experiment_registry.claims('mine.c4')
  experiment_registry.import_module('mine.c4')
  assert type(_find('Exp')).__name__ == 'Exp'
  names = experiment_registry.names(SourceOptions())
  assert names['mine.c4.Exp'] == 'First line.'


def test_a_module_to_import_must_exist():
  with pytest.raises(errors.UserError, match='module no_such_module not found'):
    experiment_registry.import_module('no_such_module')


def test_tags_and_registered_classes():
  @experiment_registry.register(tags=['smoke'], allow_overwrite=True)
  class Tagged(base_experiment.BaseExperiment):
    """Has tags."""

    def task(self):
      return tasks_lib.SingleTask.config()

    def datasets(self):
      return []

  name = f'{__name__}.{Tagged.__qualname__}'
  assert experiment_registry.get(name) is Tagged
  assert experiment_registry.get_all()[name] is Tagged
  assert experiment_registry.get_registry_tags(name) == ['smoke']
  assert experiment_registry.get_registry_tags('none') == []
  assert experiment_registry.get('none') is None
