"""The lock of a run's folder: one training job at a time, one eval job, ...

Two of them would delete each other's checkpoints and metrics. The file
`training.lock` in the folder names the process that trains, process 0 of
several. It is written again every ten seconds, so that a process on another
machine sees whether it is alive, without comparing clocks; on the same machine,
the process is looked up.

Jobs that evaluate and decode only read what training writes. They have locks of
their own, `eval.lock` and `decode.lock`.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from absl import logging

from pax_compat import errors
from pax_compat.runs import files, job_dir, remote

TRAINING = 'training'
# The file of that lock.
FILE = f'{TRAINING}.lock'
_SECONDS_BETWEEN_BEATS = 10.0
# A lock that does not change for so long is of a process that has ended.
_SECONDS_TO_WATCH = 35.0
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclasses.dataclass(frozen=True)
class Holder:
  """The process that holds a lock, as its file describes it.

  Attributes:
    token: different for each lock.
    host: name of the machine.
    pid: number of the process.
    machine: identifies the running system and the numbering of its processes;
      '' if these are not known.
    started: when the process was started, as the system counts.
    since: when it took the lock, in local time.
    beats: how often it has written the file.
  """

  token: str
  host: str
  pid: int
  machine: str
  started: str
  since: str
  beats: int = 0

  @classmethod
  def this_process(cls) -> 'Holder':
    """Returns a holder for a new lock of this process."""
    now = datetime.datetime.now().astimezone()
    return cls(
      token=uuid.uuid4().hex,
      host=socket.gethostname(),
      pid=os.getpid(),
      machine=_machine(),
      started=_start_of(os.getpid()),
      since=now.isoformat(sep=' ', timespec='seconds'),
    )

  def __str__(self) -> str:
    return f'process {self.pid} on {self.host} (since {self.since})'

  def is_here(self) -> bool:
    """Whether the process is, or was, one of this system."""
    return bool(self.machine) and self.machine == _machine()

  def runs_here(self) -> bool:
    """Whether the process, one of this system, has not ended."""
    return bool(self.started) and _start_of(self.pid) == self.started


class Lock:
  """The lock of a folder, in process 0; taken for a `with` block."""

  def __init__(self, folder: Any, job: str = TRAINING):
    """Does nothing yet.

    Args:
      folder: of the run, as `job_dir.checked_path` returns it; it exists.
      job: the kind of job, of which there is one at a time.
    """
    self._job = job
    self._path = folder / f'{job}.lock'
    self._mine = Holder.this_process()
    self._is_over = threading.Event()
    self._lost_to: Holder | None = None
    self._thread = threading.Thread(
      target=self._beat, name='lock of the folder', daemon=True
    )

  def __enter__(self) -> 'Lock':
    """Takes the lock.

    Raises:
      UserError: another process has it, or it cannot be written.
    """
    try:
      with _alone(self._path.parent):
        self._require_free()
        self._write()
      # A storage service without locks of its own: the last one to write wins.
      if remote.is_remote(self._path):
        time.sleep(2 * _SECONDS_BETWEEN_LOOKS)
        self._find_loss()
        self.check()
    except errors.UserError:
      raise
    except Exception as e:
      if not isinstance(e, OSError) and not remote.is_remote(self._path):
        raise
      reason = getattr(e, 'strerror', None) or errors.one_line(e)
      raise errors.UserError(
        f'--job_log_dir={self._path.parent} cannot be used: {self._path.name}'
        f' cannot be written: {reason}; expected a folder that is writable'
      ) from e
    self._thread.start()
    return self

  def __exit__(self, *unused_error):
    self._is_over.set()
    self._thread.join()
    with contextlib.suppress(Exception):  # A stale lock is recognized as such.
      holder = _read(self._path)
      if holder is not None and holder.token == self._mine.token:
        self._path.unlink()

  def check(self):
    """Raises a UserError if another process has taken the lock."""
    if self._lost_to is not None:
      raise errors.UserError(
        f'--job_log_dir={self._path.parent} was taken over by the'
        f' {self._job} {self._lost_to}, which found no sign of this one;'
        ' nothing more is written'
      )

  def _require_free(self):
    """Raises a UserError if another process holds the lock."""
    holder = _read(self._path)
    if holder is None:
      return
    if holder.is_here():
      alive = holder.runs_here()
    else:
      alive = self._changes(holder)
    if alive:
      raise errors.UserError(
        f'--job_log_dir={self._path.parent} is in use: the {self._job}'
        f' {holder} writes to it; expected one at a time. Wait until it has'
        ' ended, stop it, or give another --job_log_dir'
      )
    logging.warning(
      'the %s %s has ended without removing its lock of the folder',
      self._job,
      holder,
    )

  def _changes(self, holder: Holder) -> bool:
    """Whether the process of another machine writes its lock meanwhile."""
    logging.warning(
      'the folder has a lock of the %s %s: waiting for %d seconds to see'
      ' whether it is alive',
      self._job,
      holder,
      _SECONDS_TO_WATCH,
    )
    deadline = time.monotonic() + _SECONDS_TO_WATCH
    while time.monotonic() < deadline:
      time.sleep(_SECONDS_BETWEEN_LOOKS)
      now = _read(self._path)
      if now is None:
        return False  # It has ended, and removed the file.
      if now != holder:
        return True
    return False

  def _write(self):
    files.replace(
      self._path, json.dumps(dataclasses.asdict(self._mine)).encode()
    )

  def _beat(self):
    while not self._is_over.wait(_SECONDS_BETWEEN_BEATS):
      try:
        self._find_loss()
        if self._lost_to is not None:
          return
        self._mine = dataclasses.replace(self._mine, beats=self._mine.beats + 1)
        self._write()
      except Exception as e:  # noqa: BLE001 (of a disk or network)
        logging.warning(
          '%s cannot be written: %s', self._path, errors.one_line(e)
        )

  def _find_loss(self):
    holder = _read(self._path)
    if holder is not None and holder.token != self._mine.token:
      self._lost_to = holder


def _read(path: Any) -> Holder | None:
  """Returns the holder of a lock; None if there is none, or it is damaged."""
  try:
    return Holder(**files.parse_json(files.read_bytes(path)))
  except FileNotFoundError:
    return None
  except (ValueError, TypeError):
    logging.warning('%s is damaged, and is not a lock', path)
    return None


@contextlib.contextmanager
def _alone(folder: Any) -> Iterator[None]:
  """Within it, no other process of this machine takes a lock of the folder.

  File systems that lack these locks are used without.
  """
  if remote.is_remote(folder):
    yield
    return
  number = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):
      fcntl.flock(number, fcntl.LOCK_EX)
    yield
  finally:
    os.close(number)


def _machine() -> str:
  """Returns the boot of this system and its numbering of processes."""
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.readlink("/proc/self/ns/pid")}'
  except OSError:
    return ''


def _start_of(pid: int) -> str:
  """Returns when a process of this system was started; '' if it has ended.

  The numbers of processes are used again.
  """
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return ''
  state, *fields = stat.rpartition(')')[2].split()
  return '' if state in 'ZX' else fields[18]


def is_held_here(folder: Any, job: str = TRAINING) -> bool:
  """Whether a process of this system holds the lock of a folder."""
  holder = _read(folder / f'{job}.lock')
  return holder is not None and holder.is_here() and holder.runs_here()


@contextlib.contextmanager
def held(folder: str | os.PathLike, job: str = TRAINING) -> Iterator[Lock]:
  """Within it, this process holds the lock of a run's folder.

  Args:
    folder: of the run; it exists.
    job: the kind of job, of which there is one at a time.

  Raises:
    UserError: another process has it, or it cannot be written.
  """
  with Lock(job_dir.checked_path(folder), job) as lock:
    yield lock
