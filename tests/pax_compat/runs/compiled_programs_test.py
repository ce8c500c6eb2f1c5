"""Tests of the folder of compiled programs; a run's is in `pax_flags_test`."""

import os

import pytest

from pax_compat import errors
from pax_compat.runs import compiled_programs


def test_the_folder_is_made_for_its_user_alone(tmp_path):
  path = compiled_programs._made(str(tmp_path / 'a' / 'b'))
  assert path.parent == tmp_path / 'a' / 'b'
  assert path.stat().st_mode & 0o777 == 0o700
  assert compiled_programs._made(str(tmp_path / 'a' / 'b')) == path


def test_programs_of_others_are_not_run(tmp_path, monkeypatch):
  path = compiled_programs._made(str(tmp_path))
  path.chmod(0o777)
  message = f'--compilation_cache_dir={tmp_path} cannot be used: .* by others'
  with pytest.raises(errors.UserError, match=message):
    compiled_programs._made(str(tmp_path))
  # Without the flag, a run compiles.
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  compiled_programs._made(None).chmod(0o777)
  assert compiled_programs._made(None) is None


def test_the_oldest_files_are_deleted(tmp_path, monkeypatch):
  monkeypatch.setattr(compiled_programs, '_MAX_BYTES', 25)
  for number, name in enumerate(['old', 'new', 'newest']):
    (tmp_path / name).write_bytes(b'0123456789')
    os.utime(tmp_path / name, (number, number))
  compiled_programs._prune(tmp_path)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['new', 'newest']
