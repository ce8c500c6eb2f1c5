"""Log lines of libraries are hidden, wherever the libraries are."""

import logging
import sys

import pytest
from absl import flags

from pax_compat.cli import command_line
from tests.pax_compat import launching


def _shown(path: str, level: int = logging.INFO) -> bool:
  record = logging.LogRecord('', level, path, 1, '', None, None)
  return command_line._is_for_users(record)


@pytest.mark.parametrize('folder', ['dist-packages', 'site-packages', 'own'])
def test_verbose_libraries_are_hidden_in_any_folder(
  monkeypatch, tmp_path, folder
):
  monkeypatch.setattr(sys, 'path', ['', str(tmp_path), str(tmp_path / folder)])
  library = str(tmp_path / folder / 'jax/_src/cache.py')
  orbax = str(tmp_path / folder / 'orbax/checkpoint.py')
  assert not _shown(library)
  assert _shown(library, logging.ERROR)
  assert not _shown(orbax, logging.ERROR)
  assert _shown(str(tmp_path / folder / 'my_team/jax/cache.py'))
  assert _shown(str(tmp_path / 'elsewhere/jax/_src/cache.py'))


@pytest.fixture(name='parse')
def _parse(monkeypatch):
  """Returns a function that parses, with the flags of a small program."""
  values = flags.FlagValues()
  flags.DEFINE_list('import_modules', [], '', flag_values=values)
  flags.DEFINE_multi_string('attr', [], '', flag_values=values)
  flags.DEFINE_bool('list', False, '', flag_values=values)
  flags.DEFINE_integer('level', 0, '', flag_values=values)
  values['level'].value = 1  # As logging does before flags are parsed.
  monkeypatch.setattr(flags, 'FLAGS', values)

  def parse(text):
    rest = command_line._parsed(['program', *text.split()])
    return rest[1:], command_line.module_flags(), values

  return parse


def test_flags_of_modules_are_kept_until_these_are_imported(parse):
  rest, kept, values = parse(
    '--attr=a=1 --mine=x --list lm.* --import_modules=my --other 3 --attr=b=2'
  )
  assert kept == ('--mine=x', '--other', '3')
  assert rest == ['lm.*']
  assert values.attr == ['a=1', 'b=2']
  assert values.import_modules == ['my'] and values.list
  assert values.level == 1
  assert parse('--import_modules=my lm.*')[:2] == (['lm.*'], ())


def test_without_modules_an_unknown_flag_is_an_error(parse):
  with pytest.raises(flags.UnrecognizedFlagError, match="'mine'"):
    parse('--attr=a --mine=x')


def test_the_installed_command_has_the_description_of_its_module():
  script = """
    import sys
    from pax_compat import main
    sys.argv.append('--help')
    main.run()
  """
  done = launching.run_script(script)
  assert done.stdout.startswith('Trains an experiment: ')
