"""What a process holds, for tests that nothing is left behind."""

import ctypes
import gc
import os
import pathlib
import sys
import threading
from typing import NamedTuple


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


def threads() -> int:
  """Returns how many threads there are, those that garbage holds included."""
  return int(_status()['Threads'])


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
