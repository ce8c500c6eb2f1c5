"""Some wrong command lines; `wrong_commands` as a program tries more."""

import pytest

from tests.pax_compat import trainer_runs, wrong_commands


@pytest.mark.slow
def test_wrong_command_lines_end_with_one_error():
  done = trainer_runs.forked(
    *('-m', 'tests.pax_compat.wrong_commands', '--check', '--count=200')
  )
  assert done.returncode == 0, done.stdout
  assert done.stdout.splitlines()[-1].startswith('0 end in another way')


def test_what_is_wrong_is_found(tmp_path):
  problem = wrong_commands._problem
  assert not problem(0, '', tmp_path)
  assert not problem(2, 'error: a\n', tmp_path / 'run')
  assert problem(2, 'error: a\nerror: b\n', tmp_path / 'run')
  assert problem(2, '', tmp_path / 'run')
  assert problem(1, 'error: a\n', tmp_path / 'run')
  assert problem(2, 'error: a\n', tmp_path)
