"""Chooses which tests are slow, and reads the list of them, slow_tests.txt.

The list is updated from a report of a run:

    pytest -n 2 --junitxml=report.xml
    python -m tests.slow_tests report.xml

Tests in the list that the report lacks stay; with `-m ''` it has all tests.

A test is slow if it takes seconds. Of a test with several cases, the fastest
one decides, and other cases are slow if they take a good part of a second.
Tests that show a promise of the trainer in real processes are never slow.
"""

import collections
import pathlib
import sys
from collections.abc import Mapping
from xml.etree import ElementTree

LIST = pathlib.Path(__file__).with_suffix('.txt')

# Seconds from which on a test is slow.
LIMIT = 1.5
# The same for a case of a test that has a faster case.
CASE_LIMIT = 0.25

_RUNS = 'tests/pax_compat/trainer/run_test.py::'
NEVER = frozenset(
  {
    _RUNS + 'test_a_killed_run_continues_exactly',
    _RUNS + 'test_a_stopped_run_saves_and_continues_exactly',
    _RUNS + 'test_two_processes_train_and_stop_as_one',
  }
)


def listed() -> frozenset[str]:
  """Returns the ids of the tests in the list."""
  return frozenset(LIST.read_text().splitlines())


def choose(seconds: Mapping[str, float]) -> list[str]:
  """Returns the ids of slow tests, sorted.

  >>> choose({'a::x': 9, 'a::y[1]': 1, 'a::y[2]': 0.1, 'a::z': 1})
  ['a::x', 'a::y[1]']

  Args:
    seconds: by id, how long each test takes.
  """
  cases = collections.defaultdict(list)
  for test, taken in seconds.items():
    cases[function(test)].append((taken, test))
  slow = []
  for name, of_function in cases.items():
    fastest, *others = sorted(of_function)
    if fastest[0] >= LIMIT and name not in NEVER:
      slow += [test for _, test in of_function]
    else:
      slow += [test for taken, test in others if taken >= CASE_LIMIT]
  return sorted(slow)


def function(test: str) -> str:
  """Returns the id of a test without its case."""
  return test.partition('[')[0]


def measured(path: str) -> dict[str, float]:
  """Returns the seconds that each test took, by id.

  Args:
    path: of a report of pytest, --junitxml.
  """
  return {
    f'{case.get("classname").replace(".", "/")}.py::{case.get("name")}': float(
      case.get('time')
    )
    for case in ElementTree.parse(path).getroot().iter('testcase')
  }


def main(path: str) -> None:
  seconds = measured(path)
  slow = sorted({*choose(seconds), *(listed() - seconds.keys())})
  LIST.write_text(''.join(f'{test}\n' for test in slow))
  print(f'{LIST.name}: {len(slow)} tests')


if __name__ == '__main__':
  main(*sys.argv[1:])
