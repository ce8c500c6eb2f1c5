"""Tests of lines of the standard library."""

import doctest

import numpy as np
import pytest

from lm_tasks import python_lines
from pax_compat import errors

_SOURCE = '''"""Says what this module is for.

A second line of it.
"""

# A comment, above.
import collections  # Not a comment alone.


def function(argument):
  """Returns a text."""
  return """a text
  # of two lines""" + argument
'''


@pytest.fixture(name='few', autouse=True)
def _few(monkeypatch):
  monkeypatch.setattr(python_lines, '_MODULES', ('heapq', 'missing_module'))
  python_lines.balanced_lines.cache_clear()
  yield
  python_lines.balanced_lines.cache_clear()


def _input(**fields):
  given = dict(split='train', batch_size=9, seq_len=16, reset_for_eval=True)
  return python_lines.PythonLinesInput.config(**given | fields).Instantiate()


def test_the_examples():
  result = doctest.testmod(python_lines)
  assert result.attempted and not result.failed


def test_the_class_of_each_line():
  assert sorted(python_lines.classified(_SOURCE)) == [
    ('code', 'def function(argument):'),
    ('code', 'return """a text'),
    ('text', 'A comment, above.'),
    ('text', 'A second line of it.'),
    ('text', 'Returns a text.'),
    ('text', 'Says what this module is for.'),
  ]


def test_splits_share_no_line_and_classes_are_equally_frequent():
  train, test = (_input(split=split).lines for split in ('train', 'test'))
  assert len(train) > 5 * len(test) > 0
  assert not {line for line, _ in train} & {line for line, _ in test}
  for lines in (train, test):
    counts = np.bincount([label for _, label in lines])
    assert len(counts) == 2 and len(set(counts)) == 1


def test_a_batch():
  batch = _input().get_next()
  assert batch.ids.shape == (9, 16) and batch.labels.shape == (9,)
  line, label = _input().lines[0]
  assert bytes(batch.ids[0].tolist()).decode().rstrip('\0') == line[:16]
  assert batch.labels[0] == label


def test_mistakes(monkeypatch):
  with pytest.raises(errors.UserError, match="is 'dev'; expected one of train"):
    _input(split='dev')
  monkeypatch.setattr(python_lines, '_MODULES', ())
  with pytest.raises(errors.UserError, match='without the source of its libr'):
    python_lines.balanced_lines('test')
