"""The list of exhaustive tests, and when they run."""

import contextlib
import doctest
import sqlite3
import types

import pytest

from tests import exhaustive_tests


def test_the_example():
  tried = doctest.testmod(exhaustive_tests)
  assert tried.attempted and not tried.failed


class _Item:
  """A test as pytest collects it."""

  def __init__(self, is_exhaustive: bool):
    self.is_exhaustive = is_exhaustive

  def get_closest_marker(self, name):
    return self.is_exhaustive or None


@pytest.mark.parametrize(
  'expression,runs',
  [
    ('not slow', False),
    ('slow', False),
    ('', True),
    ('exhaustive', True),
    ('slow and not exhaustive', True),  # pytest itself leaves them out.
  ],
)
def test_they_run_if_the_expression_names_them(expression, runs):
  items = [_Item(False), _Item(True), _Item(False)]
  [*before] = items
  deselected = []
  config = types.SimpleNamespace(
    option=types.SimpleNamespace(markexpr=expression),
    hook=types.SimpleNamespace(
      pytest_deselected=lambda items: deselected.extend(items)
    ),
  )
  exhaustive_tests.leave_out(config, items)
  assert items == [x for x in before if runs or not x.is_exhaustive]
  assert deselected == ([] if runs else [before[1]])


def test_each_is_slow_and_may_be_chosen():
  for test in exhaustive_tests.listed():
    assert exhaustive_tests.may_be_chosen(test), test


_REPORT = """<testsuites><testsuite>
<testcase classname="tests.pairwise_test" name="test_a[0]" time="1"/>
<testcase classname="tests.pairwise_test" name="test_a[1]" time="3"/>
<testcase classname="tests.rerun_test" name="test_it" time="9"/>
</testsuite></testsuites>"""


def test_the_list_is_made_of_a_measurement(tmp_path, monkeypatch, capsys):
  """In the tables that pages of coverage describe."""
  with contextlib.closing(sqlite3.connect(tmp_path / 'coverage')) as data:
    data.execute('create table context (id, context)')
    data.execute('create table arc (file_id, context_id, fromno, tono)')
    for id_, (test, arcs) in enumerate(
      {
        'tests/readme_test.py::test|run': [(1, 2)],
        'tests/pairwise_test.py::test_a[0]|setup': [(1, 2)],
        'tests/pairwise_test.py::test_a[0]|run': [(2, 3), (3, 4)],
        'tests/pairwise_test.py::test_a[1]|run': [(1, 2), (2, 3)],
        'tests/rerun_test.py::test_it|run': [(1, 2)],  # Starts processes.
      }.items()
    ):
      data.execute('insert into context values (?, ?)', (id_, test))
      for arc in arcs:
        data.execute('insert into arc values (0, ?, ?, ?)', (id_, *arc))
    data.commit()
  (tmp_path / 'report').write_text(_REPORT)
  monkeypatch.setattr(exhaustive_tests, 'LIST', tmp_path / 'list.txt')
  exhaustive_tests.main(str(tmp_path / 'coverage'), str(tmp_path / 'report'))
  assert exhaustive_tests.listed() == {'tests/pairwise_test.py::test_a[1]'}
  assert capsys.readouterr().out == 'list.txt: 1 tests of 3 s\n'
