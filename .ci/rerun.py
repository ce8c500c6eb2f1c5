"""Runs tests that failed once more, each alone, and lists the flaky ones.

The command line has two arguments for each run of pytest: the file that it had
as $FAILED_TESTS and its exit status. The exit status is 0 if each test passed
at last.
"""

import pathlib
import subprocess
import sys

# More failed tests than this are a defect, not flaky tests.
MOST = 3


def main(arguments: list[str]) -> int:
  failed = []
  for path, status in zip(arguments[::2], arguments[1::2], strict=True):
    found = _failed_tests(pathlib.Path(path))
    # 0: all passed. 1: some failed. Others: the tests could not be run.
    if int(status) != bool(found):
      print(f'pytest ended with status {status}; failed tests: {found}')
      return 1
    failed += found
  if not failed:
    print('none')
    return 0
  print(*failed, sep='\n')
  if len(failed) > MOST:
    print(f'{len(failed)} tests failed: expected at most {MOST} to run again')
    return 1
  again = [test for test in failed if not _passes(test)]
  for test in failed:
    print(f'FAILED TWICE: {test}' if test in again else f'FLAKY: {test}')
  return bool(again)


def _failed_tests(path: pathlib.Path) -> list[str]:
  """Returns the tests of a file, each once."""
  return sorted(set(path.read_text().splitlines())) if path.exists() else []


def _passes(test: str) -> bool:
  """Runs one test in a worker, so that one that hangs ends the worker only."""
  done = subprocess.run(
    [sys.executable, '-m', 'pytest', '-n', '1', '-m', '', test]
  )
  return done.returncode == 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
