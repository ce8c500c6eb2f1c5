"""Chooses which slow tests are exhaustive, and reads exhaustive_tests.txt.

The list is updated from what each test runs, which pytest-cov measures:

    : > tests/exhaustive_tests.txt
    COV='--cov=pax_compat --cov=adaptors --cov=lm_tasks --cov-branch
      --cov-context=test --cov-report='
    pytest -n 2 $COV
    pytest -n 2 $COV --cov-append -m slow --junitxml=slow.xml
    python -m tests.exhaustive_tests .coverage slow.xml

A case of a slow test is exhaustive if all that it runs of this project, each
step from a line to the next one, is run by tests of the same room that are not
exhaustive: so parity with Lingvo stays measured for what it was measured for.
The longest are considered first, and one case of each test stays. Not chosen
are tests that run something in other processes, which is not measured, and
those whose cases are experiments or recordings, each for itself.
"""

import collections
import pathlib
import sqlite3
import sys
from collections.abc import Iterable, Mapping

import pytest

from tests import slow_tests

MARKER = 'exhaustive'
LIST = pathlib.Path(__file__).with_suffix('.txt')

# Words in files of tests that run something in other processes.
_PROCESSES = (
  'subprocess',
  'launching',
  'trainer_runs',
  'short_waits',
  'family_parity',
  'multiprocessing',
  'Popen',
)
# Where all tests do.
_FOLDERS = 'tests/on_eight_devices/', 'tests/benchmarks/'
# Where cases are experiments or recordings.
_OF_DATA = (
  'tests/adaptors/translate/stock_',
  'tests/golden_test.py',
  'tests/lm_tasks/',
  'tests/notebooks_test.py',
  'tests/pax/',
)
_ROOT = pathlib.Path(__file__).parents[1]


def listed() -> frozenset[str]:
  """Returns the ids of the tests in the list."""
  return frozenset(LIST.read_text().splitlines())


def leave_out(config: pytest.Config, items: list[pytest.Item]):
  """Leaves out exhaustive tests, unless `-m` names their marker or is empty.

  So `-m slow` runs no slow test of them.

  Args:
    config: has the expression of `-m`.
    items: of all tests; those that are left out are removed.
  """
  expression = config.option.markexpr
  if not expression or MARKER in expression:
    return
  left_out = [item for item in items if item.get_closest_marker(MARKER)]
  config.hook.pytest_deselected(items=left_out)
  items[:] = [item for item in items if not item.get_closest_marker(MARKER)]


def choose(
  steps: Mapping[str, Iterable], seconds: Mapping[str, float]
) -> list[str]:
  """Returns the ids of exhaustive tests, sorted.

  >>> steps = {'::a[1]': [1, 2], '::a[2]': [2, 3], '::b': [1, 2, 3]}
  >>> choose(steps, {'::a[1]': 3, '::a[2]': 2, '::b': 9})
  ['::a[1]']
  >>> choose(steps | {'::b': [2, 3]}, {'::a[1]': 3})
  []

  Args:
    steps: by id, what each test runs.
    seconds: by id, how long tests take that may be chosen.
  """
  counts = collections.defaultdict(collections.Counter)
  for test, of_test in steps.items():
    counts[_room(test)].update(set(of_test))
  cases = collections.Counter(map(slow_tests.function, steps))
  chosen = []
  for test in sorted(seconds, key=lambda test: (-seconds[test], test)):
    own, others = set(steps[test]), counts[_room(test)]
    function = slow_tests.function(test)
    if cases[function] > 1 and all(others[step] > 1 for step in own):
      others.subtract(own)
      cases[function] -= 1
      chosen.append(test)
  return sorted(chosen)


def _room(test: str) -> str:
  """Returns the folder below that of a package: tests/adaptors/translate."""
  return '/'.join(test.partition('::')[0].split('/')[:3])


def may_be_chosen(test: str) -> bool:
  """Returns whether a test is in a file whose tests may be exhaustive."""
  path = test.partition('::')[0]
  if path.startswith((*_FOLDERS, *_OF_DATA)):
    return False
  text = (_ROOT / path).read_text()
  return not any(word in text for word in _PROCESSES)


def _measured_steps(path: str) -> dict[str, list[int]]:
  """Returns what each test runs, as numbers, from a file of coverage."""
  numbers, steps = {}, collections.defaultdict(list)
  with sqlite3.connect(f'file:{path}?mode=ro', uri=True) as data:
    for context, *step in data.execute(
      'select context, file_id, fromno, tono from arc'
      ' join context on context.id = context_id'
    ):
      # The phase follows: setup, run or teardown.
      test = context.rpartition('|')[0]
      steps[test].append(numbers.setdefault(tuple(step), len(numbers)))
  return steps


def main(coverage: str, report: str) -> None:
  seconds = slow_tests.measured(report)
  steps = _measured_steps(coverage)
  chosen = choose(
    steps,
    {k: v for k, v in seconds.items() if k in steps and may_be_chosen(k)},
  )
  LIST.write_text(''.join(f'{test}\n' for test in chosen))
  print(
    f'{LIST.name}: {len(chosen)} tests of'
    f' {sum(seconds[test] for test in chosen):.0f} s'
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
