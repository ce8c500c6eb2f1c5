"""Trials as processes, and the end of those whose study was killed."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

# The process id of the study, in the environment of its trials.
_PARENT = 'PAX_COMPAT_STUDY_PID'
OUTPUT_FILE = 'output.txt'
SECONDS_BETWEEN_LOOKS = 0.5
_ERROR = 'error: '


class Process(Protocol):
  """A running trial, with the methods of `subprocess.Popen` that are used."""

  def poll(self) -> int | None:
    """Returns the exit status, None while it runs."""

  def send_signal(self, number: int):
    """Sends a signal."""

  def wait(self) -> int:
    """Waits for the end, and returns the exit status."""


def start(
  arguments: Sequence[str], env: Mapping[str, str], output: pathlib.Path
) -> Process:
  """Starts `python -m pax_compat.main`.

  Args:
    arguments: of the program.
    env: environment variables to set, in addition to those of this process.
    output: file to which its output is appended.
  """
  with open(output, 'ab') as f:
    return subprocess.Popen(
      [sys.executable, '-m', 'pax_compat.main', *arguments],
      env={**os.environ, _PARENT: str(os.getpid()), **env},
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      # Ctrl-C reaches the study only, which stops its trials.
      start_new_session=True,
    )


def end_with_study():
  """Stops this process, as SIGTERM does, when the study that started it ends.

  Does nothing if no study did.
  """
  text = os.environ.get(_PARENT, '')
  if not text.isdigit():
    return
  parent = int(text)

  def watch():
    while os.getppid() == parent:
      time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=watch, name='end of the study', daemon=True).start()


def error_of(output: pathlib.Path) -> str:
  """Returns the error that a process printed last, or its last line."""
  try:
    lines = output.read_text('utf-8', errors='replace').splitlines()
  except OSError:
    return ''
  found = [line for line in lines if line.startswith(_ERROR)]
  others = [line for line in lines if line.strip()]
  return (found or others or [''])[-1].removeprefix(_ERROR).strip()
