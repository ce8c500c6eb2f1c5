"""Translators are found by where they are, in any order."""

import sys

import pytest

from adaptors import translate
from adaptors.translate import registry

_MODULE = """
from adaptors.translate import registry


@registry.translates('made.up.Layer')
def layer(view):
  return 'translated'
"""


@pytest.fixture
def no_translators(monkeypatch):
  """Nothing is registered. What is, is so again after the test."""
  registry.load_translators()  # An imported module does not register again.
  empty = type(registry._translators)({}, {})
  monkeypatch.setattr(registry, '_translators', empty)


def test_a_new_module_is_found_in_a_folder_of_its_own(
  tmp_path, monkeypatch, no_translators
):
  folder = tmp_path / 'made_up'
  folder.mkdir()
  (folder / '__init__.py').touch()
  (folder / 'layers.py').write_text(_MODULE)
  monkeypatch.setattr(
    translate, '__path__', [*translate.__path__, str(tmp_path)]
  )
  registry.load_translators.__wrapped__()
  for name in ('made_up.layers', 'made_up'):
    del sys.modules[f'adaptors.translate.{name}']
  assert registry.registered()['made.up.Layer'](None) == 'translated'


@pytest.mark.parametrize('fallback_first', [False, True])
def test_a_fallback_gives_way_in_any_order(fallback_first, no_translators):
  for fallback in (fallback_first, not fallback_first):
    registry.translates('made.up.Layer', fallback=fallback)(
      'fallback' if fallback else 'translator'
    )
  assert registry.registered()['made.up.Layer'] == 'translator'


def test_a_fallback_is_used_where_there_is_nothing_else(no_translators):
  registry.translates('made.up.Layer', fallback=True)('fallback')
  assert registry.registered() == {'made.up.Layer': 'fallback'}
