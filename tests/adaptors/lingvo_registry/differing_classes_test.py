"""Tests of classes that a checkout defines otherwise than the installation."""

import importlib.util
import pathlib

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import class_definitions, differing_classes
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

_RNN_CELL = 'lingvo.core.rnn_cell'


@pytest.fixture(name='checkout')
def _checkout(tmp_path) -> pathlib.Path:
  """Returns a checkout with the installed file of RNN cells."""
  text = _installed().read_text()
  _file(tmp_path).parent.mkdir(parents=True)
  _file(tmp_path).write_text(text)
  return tmp_path


def _installed() -> pathlib.Path:
  return pathlib.Path(importlib.util.find_spec(_RNN_CELL).origin)


def _file(checkout: pathlib.Path) -> pathlib.Path:
  return checkout.joinpath(*_RNN_CELL.split('.')).with_suffix('.py')


def _change(checkout: pathlib.Path, cls: str, old: str, new: str):
  """Replaces text of a class."""
  start, mark, body = _file(checkout).read_text().partition(f'\nclass {cls}(')
  assert mark and old in body
  _file(checkout).write_text(start + mark + body.replace(old, new, 1))
  class_definitions.of_file.cache_clear()


def _params():
  """Returns Params of a layer with a cell in a field."""
  layer = lingvo_runtime.module('lingvo.core.rnn_layers').FRNN.Params()
  cells = lingvo_runtime.module(_RNN_CELL)
  return layer.Set(cell=cells.LayerNormalizedLSTMCellSimple.Params())


def test_equal_classes_do_not_count(checkout):
  _change(checkout, 'LSTMCellSimple', 'class', 'class')
  assert differing_classes.of(_params(), checkout) == []
  # Comments and docstrings do not count, nor do other classes.
  _change(checkout, 'LSTMCellSimple', '"""', '"""Theirs. ')
  _change(checkout, 'LSTMCellSimple', '\n  def ', '\n  # Theirs.\n  def ')
  _change(checkout, 'GRUCell', '\n  def ', '\n  def mine(self): ...\n  def ')
  assert differing_classes.of(_params(), checkout) == []
  assert differing_classes.described(_params(), checkout) == []


def test_changed_bases_of_used_classes_count(checkout):
  new = '\n  def mine(self): ...\n  def '
  _change(checkout, 'LSTMCellSimple', '\n  def ', new)
  assert differing_classes.of(_params(), checkout) == [
    f'{_RNN_CELL}.LSTMCellSimple'
  ]
  [text] = differing_classes.described(_params(), checkout)
  assert text.endswith(f'defines them otherwise: {_RNN_CELL}.LSTMCellSimple')
  assert str(checkout) in text


def test_without_a_readable_checkout_nothing_differs(checkout):
  assert differing_classes.of(_params(), None) == []
  _file(checkout).write_text('print "two"')
  class_definitions.of_file.cache_clear()
  assert differing_classes.of(_params(), checkout) == []
