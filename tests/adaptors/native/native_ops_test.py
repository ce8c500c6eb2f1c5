"""Tests of `adaptors.native.native_ops` that need no TensorFlow."""

import os
import pathlib
import subprocess
import sys

import pytest

from adaptors.native import elf_symbols, native_ops
from pax_compat import errors
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


@pytest.fixture(name='library')
def _library(tmp_path, monkeypatch) -> pathlib.Path:
  """Returns a library too new for any system, with an empty cache folder."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  path = tmp_path / 'x_ops.so'
  path.write_bytes(native_library.from_the_future())
  return path


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  return [p for p in folder.rglob('*') if p.is_file()]


def test_the_copy_is_repaired_and_the_original_untouched(library, tmp_path):
  before = library.read_bytes(), library.stat().st_mtime_ns
  copy = native_ops.repaired_copy(library)
  assert copy.is_relative_to(tmp_path / 'cache' / 'pax_compat')
  assert copy.read_bytes() == elf_symbols.repair(before[0])
  assert (library.read_bytes(), library.stat().st_mtime_ns) == before


def test_a_copy_is_written_once(library):
  copy = native_ops.repaired_copy(library)
  before = copy.stat()
  assert native_ops.repaired_copy(library) == copy
  after = copy.stat()
  assert (after.st_ino, after.st_mtime_ns) == (
    before.st_ino,
    before.st_mtime_ns,
  )


@pytest.mark.parametrize('content', [b'', b'\x7fELF', None])
def test_a_broken_copy_is_written_again(library, content):
  copy = native_ops.repaired_copy(library)
  good = copy.read_bytes()
  copy.write_bytes(good[:-1] + b'x' if content is None else content)
  assert native_ops.repaired_copy(library).read_bytes() == good


def test_another_original_gets_another_copy(library):
  first = native_ops.repaired_copy(library)
  library.write_bytes(library.read_bytes() + b'more')
  second = native_ops.repaired_copy(library)
  assert first != second and first.exists()


def test_many_processes_at_once(library, tmp_path):
  program = (
    'import pathlib, sys\n'
    'from adaptors.native import native_ops\n'
    'sys.stdin.readline()\n'
    'print(native_ops.repaired_copy(pathlib.Path(sys.argv[1])))\n'
  )
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', program, str(library)],
      env=native_library.environment(cache=tmp_path / 'cache'),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    for _ in range(6)
  ]
  for process in processes:  # All have started before the first may write.
    process.stdin.write('\n')
    process.stdin.flush()
  printed = {process.communicate()[0].strip() for process in processes}
  assert not any(process.returncode for process in processes)
  (copy,) = _files(tmp_path / 'cache')
  assert printed == {str(copy)}
  assert copy.read_bytes() == elf_symbols.repair(library.read_bytes())


def test_a_cache_folder_that_cannot_be_written_to(
  library, tmp_path, monkeypatch
):
  (tmp_path / 'file').write_text('not a folder')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  with pytest.raises(errors.UserError, match='cannot write.*XDG_CACHE_HOME'):
    native_ops.repaired_copy(library)


def test_no_half_written_file_stays(library, tmp_path, monkeypatch):
  def full(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'replace', full)
  with pytest.raises(errors.UserError, match='No space left on device'):
    native_ops.repaired_copy(library)
  assert not _files(tmp_path / 'cache')


def test_what_cannot_be_repaired_is_told(library, tmp_path):
  data = library.read_bytes()
  library.write_bytes(data.replace(b'\0__cxa_call_term', b'\0__cxa_call_Term'))
  with pytest.raises(errors.UserError) as e:
    native_ops.repaired_copy(library)
  assert str(library) in str(e.value) and '__cxa_call_Term' in str(e.value)
  assert not _files(tmp_path / 'cache')


def test_without_lingvo_the_message_has_the_command(monkeypatch):
  monkeypatch.setitem(sys.modules, 'lingvo', None)
  # As in a process in which the gate was never used.
  for name in ('lingvo.core.ops', 'lingvo.core.ops.gen_x_ops'):
    monkeypatch.delitem(sys.modules, name, raising=False)
  with pytest.raises(errors.UserError, match='pip install'):
    native_ops.load('lingvo.core.ops', 'x_ops')
