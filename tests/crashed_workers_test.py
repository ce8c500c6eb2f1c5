"""Tests that a worker that crashes costs one test, not the run."""

import subprocess
import sys

import pytest

from tests import crashed_workers

_TESTS = """
import os
import pytest

@pytest.mark.parametrize('case', range({cases}))
def test_case(case):
  if case in {crashing}:
    os._exit(1)
"""


@pytest.mark.parametrize(
  ('workers', 'files', 'passed', 'failed'),
  [
    # Other files are done before.
    (1, {'a': (3, ()), 'b': (3, ()), 'c': (4, (1,))}, 9, 1),
    # One test is left.
    (1, {'a': (3, ()), 'b': (2, (0,))}, 4, 1),
    # The worker that replaces it crashes, too.
    (2, {'a': (5, (0, 1)), 'b': (3, (2,)), 'c': (1, ())}, 6, 3),
  ],
)
def test_the_others_run(tmp_path, workers, files, passed, failed):
  for name, (cases, crashing) in files.items():
    (tmp_path / f'{name}_test.py').write_text(
      _TESTS.format(cases=cases, crashing=crashing)
    )
  (tmp_path / 'pytest.ini').write_text('[pytest]\npython_files = *_test.py\n')
  done = subprocess.run(
    [sys.executable, '-m', 'pytest', f'-n{workers}', '--dist=loadfile']
    + ['-p', crashed_workers.__name__, '--rootdir', tmp_path, tmp_path],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert f'{failed} failed, {passed} passed' in done.stdout
  assert done.returncode == 1
