"""Tests of `adaptors.native.elf_symbols`, on Lingvo's own libraries."""

import ctypes
import struct

import pytest

from adaptors import lingvo_runtime
from adaptors.native import elf_symbols
from tests.adaptors import native_library
from tests.pax_compat import launching

pytestmark = native_library.NEEDS_LINGVO


def _patched(old: bytes, new: bytes) -> bytes:
  data = native_library.from_the_future()
  assert old in data and len(old) == len(new)
  return data.replace(old, new)


def test_finds_what_the_system_lacks():
  missing = elf_symbols.missing_versions(native_library.from_the_future())
  assert {(v.library, v.name) for v in missing} == {
    ('libc.so.6', 'GLIBC_9.99'),
    ('libstdc++.so.6', 'GLIBCXX_9.9.99'),
    ('libstdc++.so.6', 'CXXABI_9.9.99'),
  }


def test_agrees_with_this_system():
  for library in ('libc.so.6', 'libstdc++.so.6', 'libm.so.6'):
    with open(_path_of(library), 'rb') as f:
      assert not elf_symbols.missing_versions(f.read())
  original = native_library.x_ops().read_bytes()
  lacking = {v.name for v in elf_symbols.missing_versions(original)}
  # This function came with that version.
  new = hasattr(ctypes.CDLL('libc.so.6'), '__isoc23_strtol')
  assert new == ('GLIBC_2.38' not in lacking)


def _path_of(library: str) -> str:
  ctypes.CDLL(library)
  with open('/proc/self/maps') as f:
    stem = library.partition('.so')[0]
    return next(
      line.split()[-1] for line in f if f'/{stem}' in line and '.so' in line
    )


def test_repaired_library_lacks_nothing_and_differs_little():
  data = native_library.from_the_future()
  repaired = elf_symbols.repair(data)
  assert len(repaired) == len(data)
  assert 0 < sum(a != b for a, b in zip(repaired, data, strict=True)) < 20
  assert not elf_symbols.missing_versions(repaired)
  assert elf_symbols.repair(repaired) == repaired


def test_what_lacks_nothing_stays_as_it_is():
  with open(_path_of('libstdc++.so.6'), 'rb') as f:
    data = f.read()
  assert elf_symbols.repair(data) == data


def print_repaired_ops(before, after):
  tf = lingvo_runtime.tensorflow()
  try:
    tf.load_op_library(before)
  except tf.errors.NotFoundError as e:
    print('refused:', e)
  ops = tf.load_op_library(after)
  ids = ops.ascii_to_token_id(['hi 7'], maxlen=6, append_eos=True)
  print(ids.target_ids.numpy().tolist())
  print(ops.id_to_ascii(ids.target_ids, [4]).numpy().tolist())


def test_repaired_ops_work(tmp_path):
  data = native_library.from_the_future()
  before, after = tmp_path / 'before.so', tmp_path / 'after.so'
  before.write_bytes(data)
  after.write_bytes(elf_symbols.repair(data))
  done = launching.run_function(print_repaired_ops, before, after)
  assert done.returncode == 0, done.stderr
  refused, ids, text = done.stdout.splitlines()
  assert refused.startswith('refused:') and 'not found (required by' in refused
  assert ids.startswith('[[12, 13, ')
  assert text == "[b'hi 7']"


@pytest.mark.parametrize('keep', [0, 3, 40, 64, 1000, 184_600, -1])
def test_cut_off_files_are_refused(keep):
  data = native_library.from_the_future()
  with pytest.raises(elf_symbols.ElfError):
    elf_symbols.repair(data[:keep])


@pytest.mark.parametrize('place,byte', [(0, 0x7E), (4, 1), (5, 2)])
def test_other_formats_are_refused(place, byte):
  data = bytearray(native_library.from_the_future())
  data[place] = byte
  with pytest.raises(elf_symbols.ElfError, match='little-endian ELF64'):
    elf_symbols.repair(bytes(data))


def test_text_is_refused():
  with pytest.raises(elf_symbols.ElfError):
    elf_symbols.repair(b'no library, but rather a text\n' * 50)


def test_broken_offsets_are_refused():
  data = bytearray(native_library.from_the_future())
  (start,) = struct.unpack_from('<Q', data, 0x28)
  (count,) = struct.unpack_from('<H', data, 0x3C)
  for i in range(count):
    # Each section begins past the end of the file.
    struct.pack_into('<Q', data, start + 64 * i + 24, 1 << 40)
  with pytest.raises(elf_symbols.ElfError):
    elf_symbols.repair(bytes(data))


def test_an_unknown_symbol_is_refused():
  data = _patched(b'\0__cxa_call_terminate\0', b'\0__cxa_call_terminatX\0')
  with pytest.raises(
    elf_symbols.UnsafeSymbolError, match='__cxa_call_terminatX.*CXXABI_9.9.99'
  ):
    elf_symbols.repair(data)


def test_a_newer_function_without_an_older_one_is_refused():
  data = _patched(b'\0__isoc23_strtol\0', b'\0__isoc23_nosuch\0')
  with pytest.raises(elf_symbols.UnsafeSymbolError, match='__isoc23_nosuch'):
    elf_symbols.repair(data)


def test_other_newer_functions_are_mapped():
  data = _patched(b'\0__isoc23_strtol\0', b'\0__isoc23_sscanf\0')
  before, after = b'__isoc23_sscanf', elf_symbols.repair(data)
  tables = [d.count(before) for d in (data, after)]
  assert tables == [1, 1]  # The string stays; what points to it has moved.
  names = {s.name for s in elf_symbols._Library(after).symbols()}
  assert 'sscanf' in names and '__isoc23_sscanf' not in names
