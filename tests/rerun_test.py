"""A test that fails in .ci/run is run once more, and listed if it passes."""

import os
import pathlib
import subprocess
import sys

import pytest

_RERUN = pathlib.Path(__file__).parents[1] / '.ci' / 'rerun.py'
_TESTS = """
import pathlib, pytest
def test_passes():
  pass
def test_flaky():
  tried = pathlib.Path(__file__).with_suffix('.tried')
  if not tried.exists():
    tried.touch()
    assert False
@pytest.mark.parametrize('number', {numbers})
def test_fails(number):
  assert False
"""


def _run(*command, folder) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, *map(str, command)],
    cwd=folder,
    # Other plugins are slow to import.
    env=os.environ
    | {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1', 'PYTEST_PLUGINS': 'xdist.plugin'},
    capture_output=True,
    text=True,
  )


@pytest.mark.parametrize(
  'numbers, status, words',
  [
    ([], 0, ['FLAKY: some_test.py::test_flaky']),
    (
      ['a/b'],
      1,
      [
        'FLAKY: some_test.py::test_flaky',
        'FAILED TWICE: some_test.py::test_fails[a/b]',
      ],
    ),
    ([1, 2, 3], 1, ['4 tests failed: expected at most 3 to run again']),
  ],
)
def test_failed_tests_run_once_more(numbers, status, words, tmp_path):
  text = _TESTS.format(numbers=numbers)
  (tmp_path / 'some_test.py').write_text(text)
  cache = ['-o', 'cache_dir=cache']
  first = _run('-m', 'pytest', '-n', '0', *cache, folder=tmp_path)
  assert first.returncode == 1, first.stdout
  done = _run(_RERUN, 'cache', 1, folder=tmp_path)
  assert done.returncode == status, done.stdout + done.stderr
  for word in words:
    assert word in done.stdout.splitlines()


@pytest.mark.parametrize('status', [1, 2, 4])
def test_runs_that_fail_without_a_failed_test(status, tmp_path):
  done = _run(_RERUN, 'none', 0, 'cache', status, folder=tmp_path)
  assert done.returncode == 1
  assert f'pytest ended with status {status}' in done.stdout


def test_no_failed_test(tmp_path):
  done = _run(_RERUN, 'default', 0, 'slow', 0, folder=tmp_path)
  assert (done.returncode, done.stdout) == (0, 'none\n')
