"""Tests of `pax_compat.trainer.compiling_ahead`."""

import ctypes
import pathlib

import pytest

from pax_compat.trainer import compiling_ahead

_LIBRARY = ctypes.CDLL(None)
_BLOCK, _BLOCKS = 100_000, 1000


def _resident() -> int:
  """Returns bytes of resident memory."""
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * 4096


@pytest.mark.skipif(
  not hasattr(_LIBRARY, 'malloc_trim'), reason='the C library is not glibc'
)
def test_freed_memory_is_returned():
  malloc, free = _LIBRARY.malloc, _LIBRARY.free
  malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
  blocks = [malloc(ctypes.c_size_t(_BLOCK)) for _ in range(_BLOCKS)]
  for block in blocks:
    ctypes.memset(block, 1, _BLOCK)
  *freed, last = blocks
  for block in freed:
    free(block)
  # The last block keeps the heap from shrinking by itself.
  before = _resident()
  compiling_ahead.return_freed_memory()
  assert before - _resident() > _BLOCK * _BLOCKS / 2
  free(last)
