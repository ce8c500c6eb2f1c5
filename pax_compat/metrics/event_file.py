"""Event files of TensorBoard, written by the caller.

`tensorboardX.SummaryWriter` writes in a thread. On a full disk that thread ends
with an error which nobody sees, and the program waits for it for ever as soon
as its queue is full. Here whoever writes gets the error.
"""

import os
import pathlib
import socket
import time
from typing import Any

from etils import epy

from pax_compat.runs import tf_records

with epy.lazy_imports():  # As in `metric_writers`.
  from tensorboardX.proto import event_pb2

_VERSION = 'brain.Event:2'


class EventFile:
  """A new event file, to which summaries are appended."""

  def __init__(self, folder: pathlib.Path, purge_step: int | None = None):
    """Creates the file.

    Args:
      folder: the folder of the split, which is created; local.
      purge_step: TensorBoard hides events of earlier files from this step on;
        None if no step is.

    Raises:
      OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns()
    # A unique name, even for two runs that start in the same second.
    self._path = folder / (
      f'events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}'
    )
    # Without a buffer, whose content would be written once more when a file is
    # closed after an error.
    self._file = open(self._path, 'ab', buffering=0)
    self._pending: list[bytes] = []
    self._append(file_version=_VERSION)
    if purge_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._append(step=purge_step, session_log=start)
    self.flush()

  def add(self, summary: Any, step: int) -> None:
    """Appends a `Summary` message; `flush` writes it."""
    self._append(step=step, summary=summary)

  def flush(self) -> None:
    """Writes what was added.

    Raises:
      OSError: it cannot be written, as the disk is full; with the file's name.
    """
    data = memoryview(b''.join(self._pending))
    self._pending.clear()
    while data:  # A disk that becomes full takes a part of it.
      try:
        data = data[self._file.write(data) :]
      except OSError as e:
        raise OSError(e.errno, e.strerror, os.fspath(self._path)) from e

  def close(self) -> None:
    """Closes the file; what was not flushed is lost."""
    self._file.close()

  def _append(self, **fields: Any) -> None:
    event = event_pb2.Event(wall_time=time.time(), **fields)
    self._pending.append(tf_records.framed(event.SerializeToString()))
