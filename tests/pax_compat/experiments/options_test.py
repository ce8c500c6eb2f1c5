"""Tests of flags that an experiment source declares."""

import dataclasses

import pytest
from absl import flags

from pax_compat.experiments import options


@dataclasses.dataclass(frozen=True)
class WordsOptions(options.Options):
  KIND = 'Words'

  corpus: str | None = options.option(None, 'Folder of the corpus.')
  order: str = options.option(
    'any', 'Order of the words.', choices=('any', 'same')
  )
  ignored: tuple[str, ...] = options.option((), 'Words to leave out.')
  lower: bool = options.option(
    False, 'Lower case.', flag='lower_case', instead='; expected lower=True'
  )


@pytest.fixture
def values(monkeypatch):
  """Fresh flags, instead of those of this process."""
  own = flags.FlagValues()
  monkeypatch.setattr(flags, 'FLAGS', own)
  for kind in ('string', 'bool', 'enum', 'multi_string'):
    define = getattr(flags, f'DEFINE_{kind}')
    monkeypatch.setattr(
      flags,
      f'DEFINE_{kind}',
      lambda *args, define=define: define(*args, flag_values=own),
    )
  return own


def test_each_field_is_a_flag(values):
  options.define(WordsOptions)
  values(['program'])
  assert options.from_flags(WordsOptions) == WordsOptions()
  values(
    ['program', '--corpus=a', '--order=same', '--ignored=x', '--ignored=y']
    + ['--lower_case']
  )
  found = options.from_flags(WordsOptions)
  assert found == WordsOptions('a', 'same', ('x', 'y'), True)
  assert list(options.changed(found)) == [
    ('corpus', ''),
    ('order', ''),
    ('ignored', ''),
    ('lower_case', '; expected lower=True'),
  ]
  assert list(options.changed(WordsOptions())) == []


def test_values_that_are_not_valid(values):
  options.define(WordsOptions)
  with pytest.raises(flags.IllegalFlagValueError, match='any|same'):
    values(['program', '--order=other'])


def test_help_lists_the_flags(values, monkeypatch):
  monkeypatch.setattr('sys.argv', ['program'])
  options.define(WordsOptions)
  text = values.main_module_help()
  for name in ('corpus', 'order', 'ignored', 'lower_case'):
    assert name in text
  assert 'Folder of the corpus.' in text


def test_flags_that_no_program_defines_have_their_defaults(values):
  assert options.from_flags(WordsOptions) == WordsOptions()
