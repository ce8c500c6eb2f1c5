"""Arrays that are made one after the other, and kept until all are there."""

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
  """A folder of arrays; what an interrupted conversion made is found again."""

  def __init__(self, folder: str | os.PathLike, source: str):
    """Opens the folder, emptied if it holds arrays of another source.

    Args:
      folder: created if needed.
      source: says what the arrays are made of.
    """
    self._folder = pathlib.Path(folder)
    self._arrays: list[np.memmap] = []
    mark = self._folder / _SOURCE
    if not mark.is_file() or mark.read_text(encoding='utf-8') != source:
      self.remove()
      self._folder.mkdir(parents=True)
      files.replace(mark, source.encode())

  def get(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns an array, on disk and not in memory, made if it is not there."""
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
    """While it is entered, what is read of arrays does not stay in memory.

    It is read from the disk again where it is needed again.
    """
    is_over = threading.Event()

    def spare():
      while not is_over.wait(_SPARING_SECONDS):
        for array in self._arrays:
          # Nothing is written to them, so nothing is lost.
          array._mmap.madvise(mmap.MADV_DONTNEED)

    thread = threading.Thread(target=spare, name='staging')
    thread.start()
    try:
      yield
    finally:
      is_over.set()
      thread.join()

  def remove(self):
    """Deletes all of it."""
    shutil.rmtree(self._folder, ignore_errors=True)
