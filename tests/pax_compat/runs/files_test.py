"""Tests of atomic writes and of the cache folder."""

import os
import pathlib

import pytest

from pax_compat.runs import files


def test_content_is_replaced_and_readable_by_others(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes(b'old')
  files.replace(path, b'new')
  assert path.read_bytes() == b'new'
  assert path.stat().st_mode & 0o777 == 0o644
  assert [p.name for p in tmp_path.iterdir()] == ['file']


def test_a_failure_leaves_the_old_content_and_nothing_else(
  tmp_path, monkeypatch
):
  def full(*_):
    raise OSError(28, 'No space left on device')

  path = tmp_path / 'file'
  path.write_bytes(b'old')
  monkeypatch.setattr(os, 'replace', full)
  with pytest.raises(OSError, match='No space left'):
    files.replace(path, b'new')
  assert path.read_bytes() == b'old'
  assert [p.name for p in tmp_path.iterdir()] == ['file']


def test_the_cache_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  assert files.user_cache() == tmp_path / 'pax_compat'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  expected = pathlib.Path(tmp_path, 'home', '.cache', 'pax_compat')
  assert files.user_cache() == expected
