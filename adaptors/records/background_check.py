"""Checks records for damage while an input is read.

Files that are too large for a check beforehand are read once more by a thread
that works for a small part of its time.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Sequence

from absl import logging

from adaptors.records import damaged_records, record_files

# The share of the time in which the thread works, and the time between pauses.
_SHARE = 0.1
_SECONDS_OF_WORK = 0.01


class BackgroundCheck:
  """Reads files to their ends, and finds the first damaged record."""

  def __init__(self, name: str, files: Sequence[tuple[str, str]]):
    """Starts nothing yet.

    Args:
      name: of the input, in messages.
      files: the type and the path of each file.
    """
    self._name = name
    self._files = files
    self._found: record_files.Damage | None = None
    self._in_haste = threading.Event()
    self._is_closed = False
    self._thread: threading.Thread | None = None

  def start(self):
    """Starts the thread, the first time."""
    if self._thread is None and self._files:
      self._thread = threading.Thread(
        target=self._run, name='record check', daemon=True
      )
      _live.add(self)
      self._thread.start()

  @property
  def has_found(self) -> bool:
    """Whether a damaged record was found so far."""
    return self._found is not None

  def raise_if_damaged(self):
    """Raises a UserError if a damaged record was found so far."""
    if self._found is not None:
      raise damaged_records.error(
        self._name, f'{self._found} (found while the input was read)'
      )

  def finish(self):
    """Reads the rest without pauses; raises as `raise_if_damaged` does."""
    if self._thread is not None and self._thread.is_alive():
      logging.info('%s: finishing the check of its records', self._name)
      self._in_haste.set()
      self._thread.join()
    self.raise_if_damaged()

  def close(self):
    """Ends the thread."""
    self._is_closed = True
    self._in_haste.set()
    if self._thread is not None:
      self._thread.join()

  def _run(self):
    for file_type, path in self._files:
      try:
        self._found = self._first_damage(path, file_type)
      except Exception as e:  # noqa: BLE001 (of any file system)
        logging.warning('%s: cannot check %s: %s', self._name, path, e)
      if self._found is not None:
        logging.error(
          '%s: %s. The input ends with its next batch, or while it waits for'
          ' one',
          self._name,
          self._found,
        )
        return
      if self._is_closed:
        return
    logging.info(
      '%s: the other %d files have no damaged record either',
      self._name,
      len(self._files),
    )

  def _first_damage(
    self, path: str, file_type: str
  ) -> record_files.Damage | None:
    began = time.monotonic()
    for damage in record_files.scanning(path, file_type):
      if damage is not None or self._is_closed:
        return damage
      worked = time.monotonic() - began
      if worked >= _SECONDS_OF_WORK:
        self._in_haste.wait(worked * (1 / _SHARE - 1))
        began = time.monotonic()
    return None


# TensorFlow must not run when the process exits.
_live: weakref.WeakSet[BackgroundCheck] = weakref.WeakSet()


@atexit.register
def _close_all():
  for check in list(_live):
    check.close()
