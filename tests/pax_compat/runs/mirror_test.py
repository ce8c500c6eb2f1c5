"""Tests of the copies of growing files, without a storage service."""

import contextlib
import pathlib
import threading

import pytest

from pax_compat.runs import mirror

FOLDER = pathlib.PurePosixPath('gs://bucket/run')


@pytest.fixture
def copies(monkeypatch, tmp_path):
  """Returns the contents of the files that were copied, by name."""
  found = {}

  def upload(source, target):
    found[target.name] = source.read_text()

  monkeypatch.setattr(mirror.remote, 'is_remote', lambda path: path == FOLDER)
  monkeypatch.setattr(mirror.remote, 'upload', upload)
  monkeypatch.setattr(mirror.tempfile, 'tempdir', str(tmp_path))
  return found


def test_files_are_copied_and_then_deleted(copies):
  with mirror.Mirror(FOLDER) as grown:
    (grown.local / 'a').write_text('1')
    grown.copy()
    (grown.local / 'b').write_text('2')
  assert copies == {'a': '1', 'b': '2'}
  assert not grown.local.exists()


@pytest.mark.parametrize('fails', [False, True])
def test_files_that_cannot_be_copied_stay(copies, monkeypatch, caplog, fails):
  def upload(*unused_args):
    raise ConnectionError('the network is down')

  error = RuntimeError('of the run') if fails else None
  monkeypatch.setattr(mirror.remote, 'upload', upload)
  with pytest.raises(RuntimeError if fails else ConnectionError):
    with mirror.Mirror(FOLDER) as grown:
      (grown.local / 'a').write_text('1')
      if error:
        raise error
  assert (grown.local / 'a').read_text() == '1'
  assert not copies
  assert f'and stay in {grown.local}: ConnectionError: the' in caplog.text


def test_an_older_copy_does_not_come_last(copies, monkeypatch):
  begun, go_on = threading.Event(), threading.Event()
  upload = mirror.remote.upload

  def slow(source, target):
    text = source.read_text()
    if not begun.is_set():
      begun.set()
      go_on.wait(10)
      copies[target.name] = text
    else:
      upload(source, target)
      go_on.set()

  monkeypatch.setattr(mirror.remote, 'upload', slow)
  with contextlib.ExitStack() as stack:
    grown = stack.enter_context(mirror.Mirror(FOLDER))
    (grown.local / 'a').write_text('1')
    first = threading.Thread(target=grown.copy)
    first.start()
    assert begun.wait(10)
    (grown.local / 'a').write_text('22')
    second = threading.Thread(target=grown.copy)
    second.start()
    second.join(0.5)
    go_on.set()
    first.join()
    second.join()
    assert copies == {'a': '22'}
