"""Huge pages for what a step allocates on a CPU.

XLA takes the temporary memory of a step from the C library in one piece, and
glibc gives so large a piece back to the kernel after each step: the next one
pays tens of thousands of page faults, a third of a small step's time. With
glibc's setting for transparent huge pages there are hundreds. It counts only
where it stands in the environment when a process starts.
"""

import os
import pathlib
import sys
from collections.abc import Mapping

_TUNABLES = 'GLIBC_TUNABLES'
_SETTING = 'glibc.malloc.hugetlb'
_KERNEL = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')
# The first glibc that knows the setting.
_GLIBC = (2, 35)


def start_again_with():
  """Replaces this process by itself, with huge pages asked for.

  It keeps its number, arguments and open streams. Nothing happens where the
  environment says something about them already, where the kernel has none on
  request, and without such a glibc. To be called before anything else is done.
  """
  environment = with_setting(os.environ)
  if environment is None or not _kernel_has_them() or _glibc() < _GLIBC:
    return
  sys.stdout.flush()
  sys.stderr.flush()
  try:
    os.execve(sys.executable, sys.orig_argv, environment)
  except OSError:  # It is a matter of speed only.
    return


def with_setting(environment: Mapping[str, str]) -> dict[str, str] | None:
  """Returns the environment with the setting; None where it has it already."""
  tunables = environment.get(_TUNABLES, '')
  if f'{_SETTING}=' in tunables:
    return None
  asked = ':'.join(filter(None, [tunables, f'{_SETTING}=1']))
  return {**environment, _TUNABLES: asked}


def described() -> str:
  """Says what the environment says about them, for the log; '' if nothing."""
  tunables = os.environ.get(_TUNABLES, '')
  return f'{_TUNABLES}={tunables}' if f'{_SETTING}=' in tunables else ''


def _kernel_has_them() -> bool:
  try:
    return '[madvise]' in _KERNEL.read_text()
  except OSError:
    return False


def _glibc() -> tuple[int, ...]:
  """Returns the version of glibc; (0,) where the C library is another."""
  try:
    name, version = os.confstr('CS_GNU_LIBC_VERSION').split()
    return tuple(map(int, version.split('.')))
  except (AttributeError, OSError, ValueError):
    return (0,)
