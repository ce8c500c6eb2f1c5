"""Tests of `pax_compat.cli.huge_pages`, in processes that do start again."""

import os
import pathlib

import pytest

from pax_compat.cli import huge_pages
from tests.pax_compat import trainer_runs

SETTING = 'glibc.malloc.hugetlb'
# Prints a line per start, then the setting, the arguments and the process id.
PROGRAM = """
import os, sys
from pax_compat.cli import huge_pages
print('started', os.getpid(), flush=True)
huge_pages.start_again_with()
print(os.environ.get('GLIBC_TUNABLES'), sys.argv[1:], os.getpid())
"""
KERNEL = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')
HAS_THEM = (
  KERNEL.exists()
  and '[madvise]' in KERNEL.read_text()
  and os.confstr('CS_GNU_LIBC_VERSION') >= 'glibc 2.35'
)
needs_them = pytest.mark.skipif(
  not HAS_THEM, reason='this system does not support huge pages on request'
)


@needs_them
@pytest.mark.parametrize('before', ['', 'glibc.malloc.check=0'])
def test_a_process_starts_again_once(before):
  done = trainer_runs.python(
    '-c', PROGRAM, 'one', 'two words', GLIBC_TUNABLES=before
  )
  assert done.returncode == 0, done.stderr
  *starts, last = done.stdout.splitlines()
  process = starts[0].split()[1]
  assert starts == [f'started {process}'] * 2
  tunables = ':'.join(filter(None, [before, f'{SETTING}=1']))
  assert last == f"{tunables} ['one', 'two words'] {process}"


@pytest.mark.parametrize('value', ['0', '1', '2'])
def test_the_setting_in_the_environment_is_kept(value):
  tunables = f'{SETTING}={value}'
  done = trainer_runs.python('-c', PROGRAM, GLIBC_TUNABLES=tunables)
  assert done.returncode == 0, done.stderr
  start, last = done.stdout.splitlines()
  assert last == f'{tunables} [] {start.split()[1]}'


def test_other_settings_and_variables_stay():
  given = {'A': 'b', 'GLIBC_TUNABLES': 'glibc.malloc.check=0'}
  assert huge_pages.with_setting(given) == {
    'A': 'b',
    'GLIBC_TUNABLES': f'glibc.malloc.check=0:{SETTING}=1',
  }


@needs_them
@pytest.mark.parametrize('verbosity', [0, 1])
def test_the_setting_is_logged_at_debug(tmp_path, verbosity):
  flags = trainer_runs.flags(tmp_path / 'run', f'--verbosity={verbosity}')
  done = trainer_runs.python(*flags, GLIBC_TUNABLES='')
  assert done.returncode == 0, done.stderr
  logged = (
    f'huge pages are requested: GLIBC_TUNABLES={SETTING}=1' in done.stderr
  )
  assert logged == (verbosity == 1)
