"""Tests of asking the installed sources for experiments."""

import dataclasses
import functools
import importlib.metadata
import types

import pytest
from absl import flags

from pax_compat import errors, experiment_sources
from pax_compat.experiment_sources import SourceOptions
from pax_compat.experiments import entry_points as finder
from pax_compat.experiments import options as options_lib


@dataclasses.dataclass(frozen=True)
class WordsOptions(options_lib.Options):
  KIND = 'Words'

  corpus: str | None = options_lib.option(None, 'Folder of the corpus.')
  order: str = options_lib.option(
    'any', 'Order of the words.', choices=('any', 'same')
  )
  ignored: tuple[str, ...] = options_lib.option((), 'Words to leave out.')
  lower: bool = options_lib.option(
    False, 'Lower case.', flag='lower_case', instead='; expected lower=True'
  )

  def experiment_name(self):
    return self.corpus or ''


OPTIONS = SourceOptions(own=(WordsOptions(corpus='somewhere'),))


class FakeSource:
  """Finds some names; returns its label with the name."""

  KIND = 'Words'
  OPTIONS = WordsOptions

  def __init__(self, label, *names, claimed=''):
    self.label, self.known, self.claimed = label, names, claimed
    self.calls, self.imported = [], []

  def claims(self, module):
    return module.startswith(self.claimed)

  def import_module(self, module):
    self.imported.append(module)

  def find(self, name, options):
    self.calls.append((name, options))
    return f'{self.label}:{name}' if name in self.known else None

  def names(self, options):
    assert isinstance(options, SourceOptions)
    return {name: f'of {self.label}' for name in self.known}


@pytest.fixture
def install(monkeypatch):
  """Returns a function that installs sources by their entry points' names."""

  def install_sources(**sources):
    loaded = []

    def load(name):
      loaded.append(name)
      return sources[name]

    entries = [
      types.SimpleNamespace(
        name=name, value='mine', load=lambda name=name: load(name)
      )
      for name in sources
    ]

    def entry_points(*, group):
      assert group == 'pax_compat.experiment_sources'
      return entries

    monkeypatch.setattr(importlib.metadata, 'entry_points', entry_points)
    finder._found.cache_clear()
    return loaded

  yield install_sources
  monkeypatch.undo()
  finder._found.cache_clear()


def test_sources_are_searched_in_the_order_of_their_names(install):
  last, first = FakeSource('last', 'x', 'y'), FakeSource('first', 'x')
  install(b_last=last, a_first=first)
  assert experiment_sources.find('x', OPTIONS) == 'first:x'
  assert last.calls == []
  assert experiment_sources.find('y', OPTIONS) == 'last:y'
  assert first.calls == [('x', OPTIONS), ('y', OPTIONS)]


def test_a_source_is_loaded_only_when_it_is_searched(install):
  loaded = install(b=FakeSource('b'), a=FakeSource('a', 'x'))
  assert experiment_sources.find('x', OPTIONS) == 'a:x'
  assert loaded == ['a']


def test_an_unknown_name_is_an_error_with_the_nearest_of_all_sources(install):
  install(
    a=FakeSource('a', 'lm.WordLevelSmall', 'zzz'),
    b=FakeSource('b', 'lm.WordLevel', 'qqq'),
  )
  with pytest.raises(
    errors.UserError,
    match="no experiment is called 'lm.WordLevl'.*"
    'mean: lm.WordLevel, lm.WordLevelSmall',
  ):
    experiment_sources.find('lm.WordLevl', OPTIONS)


def test_an_unknown_name_that_resembles_none_is_an_error_with_the_command(
  install,
):
  install(a=FakeSource('a', *(f'lm.Level{i}' for i in range(11))))
  with pytest.raises(
    errors.UserError, match="called 'fish'; --list prints the names of all 11$"
  ):
    experiment_sources.find('fish', OPTIONS)


def test_without_sources_there_is_no_suggestion(install):
  install()
  with pytest.raises(errors.UserError, match="called 'x'$"):
    experiment_sources.find('x', OPTIONS)


def test_an_error_of_a_source_is_raised(install):
  class Broken(FakeSource):
    def find(self, name, options):
      raise errors.UserError('this name is mine')

  install(a=Broken('a'), b=FakeSource('b', 'x'))
  with pytest.raises(errors.UserError, match='this name is mine'):
    experiment_sources.find('x', OPTIONS)


def test_names_of_all_sources_are_sorted(install):
  install(a=FakeSource('a', 'z', 'b'), b=FakeSource('b', 'c'))
  names = experiment_sources.names(OPTIONS)
  assert list(names.items()) == [('b', 'of a'), ('c', 'of b'), ('z', 'of a')]


@pytest.mark.parametrize(
  'ask',
  [
    experiment_sources.names,
    lambda options: experiment_sources.find('x', options),
  ],
)
def test_each_module_is_imported_by_the_last_source_that_claims_it(
  install, ask
):
  everything = FakeSource('a', 'x')
  of_lingvo = FakeSource('b', claimed='lingvo.')
  install(a=everything, b=of_lingvo)
  ask(SourceOptions(import_modules=('mine', 'lingvo.c4')))
  assert everything.imported == ['mine']
  assert of_lingvo.imported == ['lingvo.c4']


class NativeSource(FakeSource):
  """A source without options."""

  KIND = 'native'
  OPTIONS = None


@pytest.mark.parametrize(
  ('option', 'message'),
  [
    (dict(corpus='x'), '--corpus is for Words experiments, and n.E is a nat'),
    (dict(order='same'), '--order is for .* n.E is a native one$'),
    (dict(ignored=('x',)), '--ignored is for .* n.E is a native one$'),
    (dict(lower=True), '--lower_case is .* n.E is a native one; expected lowe'),
  ],
)
def test_an_option_of_another_source_is_refused(install, option, message):
  install(a=NativeSource('a', 'n.E'), b=FakeSource('b', 'w.E'))
  options = SourceOptions(own=(WordsOptions(**option),))
  with pytest.raises(errors.UserError, match=message):
    experiment_sources.find('n.E', options)
  assert experiment_sources.find('w.E', options) == 'b:w.E'


def test_options_of_a_source():
  assert OPTIONS.of(WordsOptions).corpus == 'somewhere'
  assert OPTIONS.experiment_name() == 'somewhere'
  assert SourceOptions().of(WordsOptions) == WordsOptions()
  assert SourceOptions().experiment_name() == ''


def test_flags_are_those_that_the_sources_declare(install, caplog):
  class Unimportable:
    @property
    def OPTIONS(self):  # noqa: N802
      raise ImportError('no such library')

  install(a=NativeSource('a'), b=Unimportable(), c=FakeSource('c'), d=object())
  assert experiment_sources.option_kinds() == [WordsOptions]
  assert 'source b = mine cannot be imported' in caplog.text
  assert 'ImportError: no such library' in caplog.text


class FlagsSource(FakeSource):
  """A source whose module defines absl flags."""

  def import_module(self, module):
    super().import_module(module)
    flags.DEFINE_string('sources_test_path', None, 'Where.')
    flags.DEFINE_bool('sources_test_lower', False, 'Lower case.')


@pytest.fixture(name='flag_values')
def _flag_values(monkeypatch):
  """Returns absl's flags, of this test only."""
  values = flags.FlagValues()
  values.mark_as_parsed()
  monkeypatch.setattr(flags, 'FLAGS', values)
  for name in ('DEFINE_string', 'DEFINE_bool'):
    define = functools.partial(getattr(flags, name), flag_values=values)
    monkeypatch.setattr(flags, name, define)
  return values


def test_flags_of_imported_modules_get_their_values(install, flag_values):
  install(a=FlagsSource('a', 'x'))
  given = ('--sources_test_path', '/data', '--sources_test_lower')
  experiment_sources.find(
    'x', SourceOptions(import_modules=('mine',), module_flags=given)
  )
  assert flag_values.sources_test_path == '/data'
  assert flag_values.sources_test_lower is True


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (
      '--sources_test_pth=x',
      "'sources_test_pth'.*sources_test_path.*import_modules=mine does not def",
    ),
    ('--sources_test_lower=x', '--sources_test_lower=x'),
    ('--sources_test_lower x', '^x: expected flags only$'),
  ],
)
def test_invalid_flags_of_imported_modules(
  install, flag_values, given, message
):
  install(a=FlagsSource('a', 'x'))
  options = SourceOptions(
    import_modules=('mine',), module_flags=tuple(given.split())
  )
  with pytest.raises(errors.UserError, match=message):
    experiment_sources.names(options)
