"""Staging of converted arrays on disk, so that a conversion can resume."""

import contextlib
import mmap
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator

import numpy as np

from pax_compat.runs import files

_SOURCE = 'source.txt'
_SPARING_SECONDS = 0.1


class Staging:
  """A folder of arrays that an interrupted conversion reuses."""

  def __init__(self, folder: str | os.PathLike, source: str):
    """Opens the folder; arrays of another source are deleted.

    Args:
      folder: created if needed.
      source: identifies what the arrays are made from.
    """
    self._folder = pathlib.Path(folder)
    self._arrays: list[np.memmap] = []
    mark = self._folder / _SOURCE
    if not mark.is_file() or mark.read_text(encoding='utf-8') != source:
      self.remove()
      self._folder.mkdir(parents=True)
      files.replace(mark, source.encode())

  def get(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns an array, memory-mapped; calls `make` if it does not exist."""
    path = self._folder / f'{name}.npy'
    if not path.is_file():
      unfinished = path.with_suffix('.unfinished')
      with unfinished.open('wb') as file:
        np.save(file, make(), allow_pickle=False)
        os.fsync(file.fileno())
      unfinished.rename(path)
    array = np.load(path, mmap_mode='r', allow_pickle=False)
    self._arrays.append(array)
    return array

  @contextlib.contextmanager
  def sparing(self) -> Iterator[None]:
    """Keeps the arrays' pages out of memory within the context.

    They are read from disk again when needed.
    """
    is_over = threading.Event()

    def spare():
      while not is_over.wait(_SPARING_SECONDS):
        for array in self._arrays:
          # The mappings are read-only, so no change is lost.
          array._mmap.madvise(mmap.MADV_DONTNEED)

    thread = threading.Thread(target=spare, name='staging')
    thread.start()
    try:
      yield
    finally:
      is_over.set()
      thread.join()

  def remove(self):
    """Deletes the folder."""
    shutil.rmtree(self._folder, ignore_errors=True)
