"""Tests of temporary folders that do not outlive their process."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from adaptors.records import temporary_folders
from tests.pax_compat import launching

_OWN = """
import pathlib, time
from adaptors.records import temporary_folders
folder = temporary_folders.OwnedFolder('kept')
pathlib.Path(folder.path, 'file').write_text('x')
print(folder.path, flush=True)
time.sleep(300)
"""


@pytest.fixture(name='temporary')
def _temporary(tmp_path, monkeypatch):
  """Returns a folder for the temporary files of this test."""
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  return tmp_path


def test_what_a_killed_process_leaves_is_removed(temporary, log):
  owner = subprocess.Popen(
    [sys.executable, '-c', _OWN],
    env=launching.environment(),
    stdout=subprocess.PIPE,
    text=True,
  )
  path = pathlib.Path(owner.stdout.readline().strip())
  own = temporary_folders.OwnedFolder('kept')
  others = [temporary / 'kept_by_others', temporary / 'other']
  for other in others:
    other.mkdir()
  temporary_folders.remove_abandoned('kept')
  assert (path / 'file').read_text() == 'x'  # Its owner lives.
  owner.send_signal(signal.SIGKILL)
  owner.communicate()
  temporary_folders.remove_abandoned('other')
  assert path.exists()
  temporary_folders.remove_abandoned('kept')
  assert f'removed {path}' in log()
  left = {str(p) for p in temporary.iterdir()}
  assert left == {own.path, *map(str, others)}
  for _ in range(2):
    own.remove()
  assert not os.path.exists(own.path)
