"""A test that fails in .ci/run is run once more, and listed if it passes."""

import inspect
import os
import pathlib
import subprocess
import sys

import pytest

from tests import conftest

_RERUN = pathlib.Path(__file__).parents[1] / '.ci' / 'rerun.py'
_TESTS = """
import os, pathlib, pytest
def test_passes():
  pass
def test_flaky():
  tried = pathlib.Path(__file__).with_suffix('.tried')
  if not tried.exists():
    tried.touch()
    os._exit(3)  # As a test that hangs does.
@pytest.mark.parametrize('number', {numbers})
def test_fails(number):
  assert False
"""
# What this project's own does, without its other settings.
_CONFTEST = f"""
import os
{inspect.getsource(conftest.pytest_runtest_logreport)}
"""
_TWO = '-n', '2'


def _run(*command, folder, **env) -> subprocess.CompletedProcess:
  # Without what the run of this test itself was started with.
  outside = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith('PYTEST_') and name != 'FAILED_TESTS'
  }
  return subprocess.run(
    [sys.executable, *map(str, command)],
    cwd=folder,
    # Other plugins are slow to import.
    env=outside
    | {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1', 'PYTEST_PLUGINS': 'xdist.plugin'}
    | env,
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
  (tmp_path / 'conftest.py').write_text(_CONFTEST)
  first = _run('-m', 'pytest', *_TWO, folder=tmp_path, FAILED_TESTS='failed')
  assert first.returncode == 1, first.stdout
  done = _run(_RERUN, 'failed', 1, folder=tmp_path)
  assert done.returncode == status, done.stdout + done.stderr
  for word in words:
    assert word in done.stdout.splitlines()


@pytest.mark.parametrize('status', [1, 2, 4])
def test_runs_that_fail_without_a_failed_test(status, tmp_path):
  done = _run(_RERUN, 'none', 0, 'failed', status, folder=tmp_path)
  assert done.returncode == 1
  assert f'pytest ended with status {status}' in done.stdout


def test_no_failed_test(tmp_path):
  done = _run(_RERUN, 'default', 0, 'slow', 0, folder=tmp_path)
  assert (done.returncode, done.stdout) == (0, 'none\n')
