"""What a process holds, for tests that nothing is left behind."""

import contextlib
import ctypes
import gc
import os
import pathlib
import sys
import threading
import time
from typing import NamedTuple

_TASKS = '/proc/self/task'
_PATIENCE_SECONDS = 60


class Held(NamedTuple):
  """What this process holds.

  Attributes:
    python_threads: that Python knows of.
    threads: of all kinds.
    files: open files and sockets.
    resident: bytes of memory that are resident.
    allocated: bytes that native code has allocated, as far as they come from
      C's heap.
    blocks: of memory that Python objects have.
  """

  python_threads: int
  threads: int
  files: int
  resident: int
  allocated: int
  blocks: int

  def more_than(self, before: 'Held') -> 'Held':
    """Returns by how much more is held than before."""
    return Held(*(b - a for a, b in zip(before, self, strict=True)))


class _MallInfo(ctypes.Structure):
  _fields_ = [
    (name, ctypes.c_size_t)
    for name in (
      'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks'
      ' keepcost'
    ).split()
  ]


def _status() -> dict[str, str]:
  status = pathlib.Path('/proc/self/status').read_text()
  return dict(line.split(':', 1) for line in status.splitlines())


def threads() -> set[int]:
  """Returns all threads by number, those of native code included."""
  return {int(number) for number in os.listdir(_TASKS)}


def wait_for_end(numbers: set[int]):
  """Waits until threads have ended.

  The system may still list one that was joined. What other threads do, which
  earlier tests have left, does not matter.
  """
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while left := numbers & threads():
    assert time.monotonic() < deadline, f'still there: {_names(left)}'
    time.sleep(0.01)


def _names(numbers: set[int]) -> list[str]:
  found = []
  for number in numbers:
    with contextlib.suppress(OSError):  # It has just ended.
      found.append(pathlib.Path(_TASKS, str(number), 'comm').read_text())
  return found


def children_seconds() -> float:
  """Returns the processor time of all ended processes that this one started."""
  used = os.times()
  return used.children_user + used.children_system


def resident() -> int:
  """Returns how many bytes of memory are resident."""
  return int(_status()['VmRSS'].split()[0]) * 1024


def held() -> Held:
  """Returns what is held, garbage excluded."""
  gc.collect()
  fields = _status()
  mallinfo = ctypes.CDLL(None).mallinfo2
  mallinfo.restype = _MallInfo
  heap = mallinfo()
  return Held(
    python_threads=threading.active_count(),
    threads=int(fields['Threads']),
    files=len(os.listdir('/proc/self/fd')),
    resident=resident(),
    allocated=heap.uordblks + heap.hblkhd,
    blocks=sys.getallocatedblocks(),
  )
