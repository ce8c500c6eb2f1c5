"""Transparent huge pages for the temporary memory of a step on a CPU.

XLA allocates the temporary memory of a step as one block. glibc returns so
large a block to the kernel after each step, so that every step has tens of
thousands of page faults: a third of the time of a small step. With glibc's
setting for transparent huge pages there are hundreds. glibc reads the setting
from the environment when a process starts.
"""

import os
import pathlib
import sys
from collections.abc import Mapping

_TUNABLES = 'GLIBC_TUNABLES'
_SETTING = 'glibc.malloc.hugetlb'
_KERNEL = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')
# The first version of glibc that has the setting.
_GLIBC = (2, 35)


def start_again_with():
  """Runs this process again in place, with the setting for huge pages.

  The process id, arguments and open streams stay. Does nothing if the
  environment has the setting already, or if the kernel or glibc do not support
  it. Call it before anything else.
  """
  environment = with_setting(os.environ)
  if environment is None or not _kernel_supports_them() or _glibc() < _GLIBC:
    return
  sys.stdout.flush()
  sys.stderr.flush()
  try:
    os.execve(sys.executable, sys.orig_argv, environment)
  except OSError:  # Huge pages only affect speed.
    return


def with_setting(environment: Mapping[str, str]) -> dict[str, str] | None:
  """Returns the environment with the setting; None if it has it already."""
  tunables = environment.get(_TUNABLES, '')
  if f'{_SETTING}=' in tunables:
    return None
  tunables = ':'.join(filter(None, [tunables, f'{_SETTING}=1']))
  return {**environment, _TUNABLES: tunables}


def described() -> str:
  """Returns the setting in the environment, for the log; '' without it."""
  tunables = os.environ.get(_TUNABLES, '')
  return f'{_TUNABLES}={tunables}' if f'{_SETTING}=' in tunables else ''


def _kernel_supports_them() -> bool:
  try:
    return '[madvise]' in _KERNEL.read_text()
  except OSError:
    return False


def _glibc() -> tuple[int, ...]:
  """Returns the version of glibc; (0,) with another C library."""
  try:
    name, version = os.confstr('CS_GNU_LIBC_VERSION').split()
    return tuple(map(int, version.split('.')))
  except (AttributeError, OSError, ValueError):
    return (0,)
