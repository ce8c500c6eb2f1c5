"""Tests of classes that the installed Lingvo has changed.

`python -m tests.adaptors.lingvo_registry.stock_classes_test --write` records
the classes of the installed release.
"""

import importlib.util
import json
import pathlib
import sys
from importlib import metadata

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import (
  class_definitions,
  differing_classes,
  stock_classes,
)
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

_RNN_CELL = 'lingvo.core.rnn_cell'


def recorded() -> str:
  """Returns the record of the installed release."""
  root = pathlib.Path(importlib.util.find_spec('lingvo').origin).parent
  record = stock_classes.record_of(root, metadata.version('lingvo'))
  # A line for each module.
  modules = ',\n'.join(
    f'{json.dumps(name)}: {json.dumps(module, separators=(",", ":"))}'
    for name, module in record['modules'].items()
  )
  release = json.dumps(record['release'])
  return f'{{"release": {release}, "modules": {{\n{modules}\n}}}}\n'


def test_the_record_is_of_the_installed_release():
  assert stock_classes.RECORD.read_text() == recorded()


def test_classes_of_the_release_have_not_changed():
  cells = lingvo_runtime.module(_RNN_CELL)
  assert not stock_classes.is_changed(cells.LSTMCellSimple)
  assert not stock_classes.is_changed(pathlib.Path)
  params = cells.LayerNormalizedLSTMCellSimple.Params()
  assert differing_classes.of_installation(params) == []
  assert differing_classes.described(params, None) == []


@pytest.fixture(name='fork')
def _fork(tmp_path, monkeypatch) -> pathlib.Path:
  """Returns a copy of the file of RNN cells, which is the installed one."""
  cells = lingvo_runtime.module(_RNN_CELL)
  file = tmp_path / 'rnn_cell.py'
  file.write_text(pathlib.Path(cells.__file__).read_text())
  monkeypatch.setattr(cells, '__file__', str(file))
  return file


def test_changed_classes_of_a_fork_are_named(fork):
  text = fork.read_text()
  start, mark, body = text.partition('\nclass LSTMCellSimple(')
  # Comments, docstrings and other classes do not count.
  body = body.replace('"""', '"""Ours. ', 1).replace(
    '\n  def ', '\n  # A\n  def '
  )
  fork.write_text(start + mark + body + '\nclass New: pass\n')
  cells = sys.modules[_RNN_CELL]
  params = cells.LayerNormalizedLSTMCellSimple.Params()
  assert differing_classes.of_installation(params) == []

  fork.write_text(
    start
    + mark
    + body.replace('\n  def ', '\n  def ours(self): ...\n  def ', 1)
  )
  class_definitions.of_file.cache_clear()
  assert stock_classes.is_changed(cells.LSTMCellSimple)
  assert not stock_classes.is_changed(cells.GRUCell)
  [text] = differing_classes.described(params, None)
  assert f'otherwise: {_RNN_CELL}.LSTMCellSimple; python -m' in text
  assert stock_classes.release() in text


if __name__ == '__main__':
  if sys.argv[1:] != ['--write']:
    raise SystemExit('expected --write')
  stock_classes.RECORD.write_text(recorded())
