"""Tests of looking up the experiments of a user's package in a folder."""

import pathlib
import subprocess
import sys
import textwrap
import types

import pytest

import adaptors
from adaptors import experiments, lingvo_runtime
from adaptors.experiments import lingvo_source
from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources

OPTIONS = experiment_sources.SourceOptions


def _options(**own):
  return OPTIONS(own=(LingvoOptions(**own),))


# One module that is right, with each spelling of the decorator.
WORDS = """
from lingvo import model_registry as registry
from lingvo.core import base_model_params
from lingvo.model_registry import RegisterMultiTaskModel
from lingvo.model_registry import RegisterSingleTaskModel as single

alias = registry.RegisterSingleTaskModel

class Base(base_model_params.SingleTaskModelParams):
  \"\"\"Not registered.\"\"\"

@registry.RegisterSingleTaskModel
class One(Base):
  \"\"\"The first one.

  And more.
  \"\"\"

@single
class Two(Base):
  pass

@alias
class Three(Base):
  \"\"\"The third one.\"\"\"

@RegisterMultiTaskModel
class Many(base_model_params.MultiTaskModelParams):
  \"\"\"Several tasks.\"\"\"
"""
WORDS_LISTED = {
  'lm.names_words.One': 'The first one.',
  'lm.names_words.Two': '',
  'lm.names_words.Three': 'The third one.',
  'lm.names_words.Many': 'Several tasks.',
}
FILES = {
  'names_team/lm_params/__init__.py': '',
  'names_team/lm_params/names_words.py': WORDS,
  'names_team/lm_params/names_typo.py': """
    from lingvo import model_registry

    @model_registry.RegisterSingleTaskModel
    class Broken
  """,
  'names_team/lm_params/names_lacks.py': """
    from lingvo import model_registry
    import names_no_such_library
  """,
  'names_team/lm_params/names_chain.py': """
    from lingvo import model_registry
    from names_team import middle
  """,
  'names_team/middle.py': 'from names_team import broken',
  'names_team/broken.py': 'import os\nos.no_such_thing',
  'names_team/lm_params/names_unset.py': """
    from lingvo import model_registry
    from lingvo.core import base_model_params

    @model_registry.RegisterSingleTaskModel
    class Model(base_model_params.SingleTaskModelParams):
      def __init__(self):
        raise ValueError('no file /please-set-MY_DATA-to-configure-dataset/a')
  """,
  'names_team/lm_params/names_fork.py': """
    from lingvo import model_registry
    import lingvo.tasks.asr.names_no_model
  """,
  'names_team/lm_params/names_raises.py': """
    from lingvo import model_registry
    from lingvo.core import base_model_params

    @model_registry.RegisterSingleTaskModel
    class Wrong:
      pass
  """,
  'names_team/__init__.py': '',
  # Outside of the mounted folder.
  'names_team/params/side.py': """
    from lingvo import model_registry
    from lingvo.core import base_model_params

    @model_registry.RegisterSingleTaskModel
    class Side(base_model_params.SingleTaskModelParams):
      pass
  """,
  'names_team/plain.py': 'class Side:\n  pass\n',
  'names_hidden.py': """
    from lingvo import model_registry
    from lingvo.core import base_model_params

    for name in ('A', 'B'):
      model_registry.RegisterSingleTaskModel(
        type(name, (base_model_params.SingleTaskModelParams,), {})
      )
  """,
  'names-1.dist-info/METADATA': 'Metadata-Version: 2.1\nName: names\n',
  'names-1.dist-info/entry_points.txt': (
    '[pax_compat.lingvo_params]\nlm = names_team.lm_params\n'
  ),
}

IN_A_FRESH_PROCESS = """
import sys
from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from adaptors.experiments import lingvo_source
from pax_compat import experiment_sources
options = experiment_sources.SourceOptions()
for name in sys.argv[1:]:
  assert lingvo_source.find(name, options) is None, name
print(sorted(lookup.names(options)))
assert 'tensorflow' not in sys.modules
assert not any(module.startswith('names_team') for module in sys.modules)
"""


@pytest.fixture(scope='module')
def team(tmp_path_factory):
  """Installs a user's package whose experiments are mounted; its folder."""
  root = tmp_path_factory.mktemp('site')
  for name, text in FILES.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(root)
    yield root


def test_unknown_names_and_lists_load_nothing(team):
  unknown = [
    'NoDots',
    'lm.nothing_here.Model',
    'nothing_here.at_all.Model',
    'not a name.Model',
    'names_team.plain.Side',
    'os.path.Model',
    'lm.layers.RnnLm',
    'lm.names_words.*',  # A pattern, as of --list.
  ]
  path = f'{team}:{pathlib.Path(adaptors.__file__).parents[1]}'
  done = subprocess.run(
    [sys.executable, '-c', IN_A_FRESH_PROCESS, *unknown],
    env={'PYTHONPATH': path},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  for name in WORDS_LISTED:
    assert name in done.stdout
  assert 'names_typo.py' in done.stderr, 'no warning of the unreadable file'


def test_scan_finds_every_spelling_and_first_lines(team):
  listed = lookup.names(OPTIONS())
  ours = {k: v for k, v in listed.items() if 'names_words' in k}
  assert ours == WORDS_LISTED


def test_find_returns_the_registered_class(team):
  found = lookup.find_model_params('lm.names_words.One', OPTIONS())
  registry = lingvo_runtime.module('lingvo.model_registry')
  helper = registry._ModelRegistryHelper
  assert type(found) is helper.GetClass('lm.names_words.One')
  # The docstring is the user's, where the registry's own class has another.
  loaded = lookup.names(_options(load_everything=True))
  assert {k: loaded[k] for k in WORDS_LISTED} == WORDS_LISTED


def test_find_makes_an_experiment(team, monkeypatch):
  fake = types.ModuleType('adaptors.experiments.lingvo_experiment')
  fake.LingvoExperiment = lambda **fields: fields
  monkeypatch.setitem(sys.modules, fake.__name__, fake)
  monkeypatch.setattr(experiments, 'lingvo_experiment', fake, raising=False)
  options = _options(translation='native')
  made = lingvo_source.find('lm.names_words.Two', options)
  assert made['name'] == 'lm.names_words.Two'
  assert (made['options'],) == options.own
  assert hasattr(made['model_params'], 'GetDatasetParams')


def test_params_packages_elsewhere_are_found(team):
  found = lookup.find_model_params('names_team.side.Side', OPTIONS())
  assert type(found).__name__ == 'Side'


def test_modules_to_import_may_register_anything(team):
  options = OPTIONS(import_modules=('names_hidden',))
  found = lookup.find_model_params('names_hidden.B', options)
  assert type(found).__name__ == 'B'
  assert 'names_hidden.A' in lookup.names(options)
  assert lookup.find_model_params('nothing.at.All', options) is None


@pytest.mark.parametrize(
  'name, message',
  [
    (
      'lm.names_words.Tree',
      r"params.names_words registers no .*'lm.names_words.Tree'; did you mean:"
      r' lm.names_words.Three, [\w.]+, [\w.]+\?$',
    ),
    (
      'lm.names_typo.Broken',
      r'params.names_typo cannot .*/names_typo.py:4: SyntaxError: expected',
    ),
    (
      'lm.names_lacks.Model',
      r'params.names_lacks cannot .*/names_lacks.py:2: ModuleNotFoundError:'
      r" No module named 'names_no_such_library'",
    ),
    (
      'lm.names_chain.Model',
      r'params.names_chain cannot .*/names_chain.py:2: AttributeError: .*'
      r" 'no_such_thing' \(it imports .*/middle.py:1, which imports"
      r' .*/broken.py:2\)$',
    ),
    (
      'lm.names_unset.Model',
      r'names_unset.Model cannot be made: ValueError: no file '
      r'.*names_unset.py:7\); expected the environment variable MY_DATA$',
    ),
    (
      'lm.names_fork.Model',
      r'params.names_fork cannot .*/names_fork.py:2: ModuleNotFoundError: .*'
      r'Lingvo does not have lingvo.tasks.asr.names_no_model; expected a'
      r' checkout that has it, as --lingvo_source$',
    ),
    (
      'lm.names_raises.Wrong',
      r'params.names_raises cannot .*/names_raises.py:4: TypeError: .*Wrong',
    ),
  ],
)
def test_errors_have_a_location(team, name, message):
  with pytest.raises(errors.UserError, match=message):
    lookup.find_model_params(name, _options(load_everything=True))


def test_a_class_that_its_module_does_not_mention_is_not_looked_for(team):
  assert lookup.find_model_params('lm.names_words.Tree', OPTIONS()) is None


def test_which_modules_are_imported_through_the_gate(team, tmp_path):
  assert not lookup.claims('names_nowhere')
  assert not lookup.claims('tests.pax_compat.counting_experiment')
  assert lookup.claims('names_hidden')
  with pytest.raises(errors.UserError, match='names_nowhere'):
    lookup.import_module('names_nowhere')


def test_a_listing_goes_on_after_a_broken_module(team, caplog):
  listed = lookup.names(_options(load_everything=True))
  assert 'lm.names_words.One' in listed
  for broken in ('names_typo.py:4', 'names_lacks.py:2', 'names_raises.py:4'):
    assert broken in caplog.text


def test_a_checkout_is_mounted(team, tmp_path):
  folder = tmp_path / 'lingvo' / 'tasks' / 'names_task' / 'params'
  folder.mkdir(parents=True)
  (folder / 'stock.py').write_text(textwrap.dedent(WORDS))
  (team / 'names_mine.py').write_text(
    'from lingvo.tasks.names_task.params import stock\nBASE = stock.One'
  )
  own = LingvoOptions(lingvo_source=str(tmp_path))
  options = OPTIONS(import_modules=('names_mine',), own=(own,))
  # It is mounted before modules of the user are imported.
  experiment_sources.import_modules(options)
  assert sys.modules['names_mine'].BASE.__name__ == 'One'
  assert 'names_task.stock.One' in lookup.names(options)
  found = lookup.find_model_params('names_task.stock.One', options)
  assert type(found).__name__ == 'One'
