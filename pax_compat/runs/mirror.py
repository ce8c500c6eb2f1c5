"""Growing files of a run, which are copied to its remote folder.

Object stores cannot append to files. So files that grow, such as
`metrics.jsonl` and TensorBoard's events, are written in a local folder, and a
thread copies those that changed. For a run in a local folder there is only that
folder, and nothing is copied.
"""

import os
import pathlib
import shutil
import tempfile
import threading
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.runs import remote

_SECONDS = 30.0


class Mirror:
  """A local folder whose files are copied; the end of a `with` block copies.

  Attributes:
    local: the folder to write to: that of the run if it is local, else a
      temporary one.
  """

  local: pathlib.Path

  def __init__(self, folder: Any, *, seconds: float = _SECONDS):
    """Does not copy anything.

    Args:
      folder: the folder of the run, as `job_dir.checked_path` returns it.
      seconds: interval of the copies.
    """
    self._target = folder
    self._seconds = seconds
    self._is_over = threading.Event()
    self._thread: threading.Thread | None = None
    # Time of the last change and size of each file when it was copied.
    self._copied: dict[str, tuple[int, int]] = {}
    self._copying = threading.Lock()  # Or an older copy may come last.
    if not remote.is_remote(folder):
      self.local = pathlib.Path(folder)
      return
    self.local = pathlib.Path(tempfile.mkdtemp(prefix='pax_compat-'))
    self._thread = threading.Thread(
      target=self._copy_at_intervals, name='copies of the run', daemon=True
    )

  def __enter__(self) -> 'Mirror':
    if self._thread is not None:
      self._thread.start()
    return self

  def __exit__(self, error, *unused_details):
    if self._thread is None:
      return
    self._is_over.set()
    self._thread.join()
    try:
      self.copy()
    except Exception as e:
      logging.error(
        'files cannot be copied to %s, and stay in %s: %s',
        self._target,
        self.local,
        errors.one_line(e),
      )
      if error is None:  # Else it must not be hidden by another one.
        raise
    else:
      shutil.rmtree(self.local, ignore_errors=True)

  def fetch(self, name: str):
    """Copies a file of the remote folder, if it is there, to continue it.

    Args:
      name: relative path of the file.
    """
    if self._thread is None:
      return
    path = self.local / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if remote.download(self._target / name, path):
      self._copied[name] = _version(path)

  def copy(self):
    """Copies the files that changed since they were copied.

    Raises:
      Exception: a file cannot be copied. It is copied again the next time.
    """
    if self._thread is None:
      return
    with self._copying:
      for path in sorted(self.local.rglob('*')):
        if path.is_file() and not path.name.startswith('.'):
          self._copy_file(path)

  def _copy_file(self, path: pathlib.Path):
    name = path.relative_to(self.local).as_posix()
    version = _version(path)
    if self._copied.get(name) != version:
      remote.upload(path, self._target / name)
      self._copied[name] = version

  def _copy_at_intervals(self):
    while not self._is_over.wait(self._seconds):
      try:
        self.copy()
      except Exception as e:  # noqa: BLE001 (of the network, which may recover)
        logging.warning('files cannot be copied to %s yet: %s', self._target, e)


def _version(path: pathlib.Path) -> tuple[int, int]:
  status = os.stat(path)
  return status.st_mtime_ns, status.st_size
