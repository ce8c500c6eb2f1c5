"""Lets a shared library load that needs newer symbol versions.

A library built on a new Linux needs versions such as `GLIBC_2.38` that an older
C or C++ library does not define, and the dynamic loader refuses it. Often only
a few harmless symbols are bound to those versions. `repair` finds the versions
that this system lacks, marks the requirements as weak, which the loader
accepts, and unbinds the symbols. It does so only if each of these symbols is
known to be safe.

Offsets and names follow the ELF-64 object file format and the Linux Standard
Base's section on symbol versioning.
"""

import ctypes
import dataclasses
import struct
from collections.abc import Iterator

# Section types.
_DYNSYM = 11
_VERDEF = 0x6FFFFFFD
_VERNEED = 0x6FFFFFFE
_VERSYM = 0x6FFFFFFF

_WEAK_VERSION = 2  # Flag in a version requirement.
_WEAK_BINDING = 2  # Upper half of a symbol's info byte.
_UNVERSIONED = 1  # Version index of a symbol without a version.
_SYMBOL_SIZE = 24

# glibc 2.38 has C23 variants of the number parsers. The rest of the name is the
# function of older versions, which differs in binary literals only.
_C23_PREFIX = '__isoc23_'

# Symbols that may stay undefined.
_NEVER_NEEDED = frozenset(
  [
    # Referred to by each object file that includes <iostream>, to link the
    # initialisation of the streams; nothing calls it.
    '_ZSt21ios_base_library_initv',
    # Called when an exception leaves a `noexcept` function, to end the process;
    # the call of an undefined symbol ends it as well.
    '__cxa_call_terminate',
  ]
)

_RTLD_DI_LINKMAP = 2


class ElfError(ValueError):
  """The bytes are not a complete little-endian ELF64 shared library."""


class UnsafeSymbolError(ValueError):
  """A symbol that this system lacks is not known to be replaceable."""


@dataclasses.dataclass(frozen=True)
class NeededVersion:
  """A version that a library needs of another one.

  Attributes:
    library: the other library, such as `libc.so.6`.
    name: the version, such as `GLIBC_2.38`.
    index: the version index of symbols bound to this version.
    flags_offset: byte of the 16-bit flags in the file.
    weak: whether the loader accepts that the version is missing.
  """

  library: str
  name: str
  index: int
  flags_offset: int
  weak: bool


@dataclasses.dataclass(frozen=True)
class _Symbol:
  """An entry of the dynamic symbol table; offsets are into the file."""

  name: str
  name_offset: int
  info: int
  defined: bool
  version: int
  offset: int
  version_offset: int


@dataclasses.dataclass(frozen=True)
class _Section:
  """The fields of a section header that are used here."""

  kind: int
  offset: int
  size: int
  link: int
  count: int


class _Library:
  """Reads the dynamic symbols and versions of an ELF64 file."""

  def __init__(self, data: bytes):
    """Checks the header and reads the section headers.

    Raises:
      ElfError: the data is not a little-endian ELF64 file, or is truncated.
    """
    if data[:6] != b'\x7fELF\x02\x01':
      raise ElfError('not a little-endian ELF64 file')
    self._data = data
    (start,) = self._unpack('<Q', 0x28)
    size, count = self._unpack('<HH', 0x3A)
    if not start or not count or size != 64:
      raise ElfError('the file has no section headers')
    self._sections = []
    for i in range(count):
      fields = self._unpack('<IIQQQQIIQQ', start + i * size)
      _, kind, _, _, offset, length, link, info, _, _ = fields
      self._sections.append(_Section(kind, offset, length, link, info))

  def _unpack(self, form: str, offset: int) -> tuple:
    try:
      return struct.unpack_from(form, self._data, offset)
    except struct.error:
      raise ElfError(
        f'the file ends before offset {offset}; it has {len(self._data)} bytes'
      ) from None

  def _section(self, kind: int) -> _Section | None:
    return next((s for s in self._sections if s.kind == kind), None)

  def _string(self, table: _Section, offset: int) -> str:
    """Returns the zero-ended string at an offset into a string table."""
    end_of_table = table.offset + table.size
    start = table.offset + offset
    end = self._data.find(b'\0', start, end_of_table)
    if offset >= table.size or end < 0:
      raise ElfError(f'no string ends after offset {start}')
    return self._data[start:end].decode('utf-8', 'backslashreplace')

  def _strings_of(self, section: _Section) -> _Section:
    if section.link >= len(self._sections):
      raise ElfError(f'section {section.link} is missing')
    return self._sections[section.link]

  def _chain(self, section: _Section) -> Iterator[tuple[int, tuple, list]]:
    """Yields offset, fields and entries of each record of a version section.

    Records of needed and of defined versions have different layouts, but both
    lists are chained by distances, the last of which is zero.
    """
    needed = section.kind == _VERNEED
    form = '<HHIII' if needed else '<HHHHIII'
    entry_form = '<IHHII' if needed else '<II'
    offset = section.offset
    for left in reversed(range(section.count)):
      record = self._unpack(form, offset)
      count = record[1] if needed else record[3]
      at = offset + record[-2]
      entries = []
      for _ in range(count):
        fields = self._unpack(entry_form, at)
        entries.append((at, fields))
        at += fields[-1]
      yield offset, record, entries
      if left and not record[-1]:
        raise ElfError(f'{left} version records are missing at {offset}')
      offset += record[-1]

  def needed_versions(self) -> list[NeededVersion]:
    """Returns the versions that the library needs of others."""
    section = self._section(_VERNEED)
    if section is None:
      return []
    strings = self._strings_of(section)
    needed = []
    for _, record, entries in self._chain(section):
      library = self._string(strings, record[2])
      for at, (_, flags, index, name, _) in entries:
        needed.append(
          NeededVersion(
            library=library,
            name=self._string(strings, name),
            index=index & 0x7FFF,
            flags_offset=at + 4,
            weak=bool(flags & _WEAK_VERSION),
          )
        )
    return needed

  def defined_versions(self) -> set[str]:
    """Returns the names of the versions that the library defines."""
    section = self._section(_VERDEF)
    if section is None:
      return set()
    strings = self._strings_of(section)
    # The first entry of a record is its name, the others are its parents.
    return {
      self._string(strings, entries[0][1][0])
      for _, _, entries in self._chain(section)
      if entries
    }

  def symbols(self) -> Iterator[_Symbol]:
    """Yields the dynamic symbols that have a version index."""
    table, versions = self._section(_DYNSYM), self._section(_VERSYM)
    if table is None or versions is None:
      return
    strings = self._strings_of(table)
    for i in range(table.size // _SYMBOL_SIZE):
      offset = table.offset + i * _SYMBOL_SIZE
      name, info, _, section = self._unpack('<IBBH', offset)
      version_offset = versions.offset + 2 * i
      (version,) = self._unpack('<H', version_offset)
      yield _Symbol(
        name=self._string(strings, name),
        name_offset=name,
        info=info,
        defined=section != 0,
        version=version & 0x7FFF,
        offset=offset,
        version_offset=version_offset,
      )


class _LinkMap(ctypes.Structure):
  """The head of the loader's `struct link_map`."""

  _fields_ = (('address', ctypes.c_void_p), ('name', ctypes.c_char_p))


def _loaded(library: str) -> tuple[ctypes.CDLL, set[str]] | None:
  """Returns the library that the loader finds, and the versions it defines.

  That is the one already in this process, if any: another of the same name
  would not be loaded. None if the loader does not find it.
  """
  try:
    handle = ctypes.CDLL(library)
  except OSError:
    return None
  dlinfo = ctypes.CDLL(None).dlinfo
  dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
  found = ctypes.POINTER(_LinkMap)()
  if dlinfo(handle._handle, _RTLD_DI_LINKMAP, ctypes.byref(found)):
    raise OSError(f'the loader does not return the path of {library}')
  with open(found.contents.name, 'rb') as f:
    return handle, _Library(f.read()).defined_versions()


def missing_versions(data: bytes) -> list[NeededVersion]:
  """Returns the versions that a library needs and that this system lacks.

  Versions of a library that the loader does not find are not among them:
  nothing can be repaired without it, and loading reports it.

  Args:
    data: the content of the shared library's file.

  Raises:
    ElfError: the data cannot be read.
  """
  missing = []
  known = {}
  for version in _Library(data).needed_versions():
    if version.weak:
      continue
    if version.library not in known:
      known[version.library] = _loaded(version.library)
    loaded = known[version.library]
    # Like the loader, accept a library that does not define any version.
    if loaded and loaded[1] and version.name not in loaded[1]:
      missing.append(version)
  return missing


def _check_safe(symbol: _Symbol, version: NeededVersion):
  """Raises UnsafeSymbolError unless the symbol works without the version."""
  name = symbol.name
  if not symbol.defined:
    if name in _NEVER_NEEDED:
      return
    if name.startswith(_C23_PREFIX):
      loaded = _loaded(version.library)
      if loaded and hasattr(loaded[0], name.removeprefix(_C23_PREFIX)):
        return
  raise UnsafeSymbolError(
    f'the symbol {name} needs version {version.name} of {version.library},'
    ' which this system lacks, and nothing is known to replace it'
  )


def repair(data: bytes) -> bytes:
  """Returns the library without requirements that this system lacks.

  Args:
    data: the content of the shared library's file.

  Returns:
    The new content, of the same length; equal to `data` if nothing is missing.

  Raises:
    ElfError: the data cannot be read.
    UnsafeSymbolError: a symbol bound to a missing version is not known to be
      replaceable or never needed.
  """
  missing = {v.index: v for v in missing_versions(data)}
  repaired = bytearray(data)
  for version in missing.values():
    (flags,) = struct.unpack_from('<H', data, version.flags_offset)
    struct.pack_into(
      '<H', repaired, version.flags_offset, flags | _WEAK_VERSION
    )
  for symbol in _Library(data).symbols():
    if symbol.version not in missing:
      continue
    _check_safe(symbol, missing[symbol.version])
    if symbol.name.startswith(_C23_PREFIX):
      # The older name is the tail of the newer one, so it needs no new string.
      name = symbol.name_offset + len(_C23_PREFIX)
      struct.pack_into('<I', repaired, symbol.offset, name)
    else:
      info = _WEAK_BINDING << 4 | symbol.info & 0xF
      struct.pack_into('<B', repaired, symbol.offset + 4, info)
    struct.pack_into('<H', repaired, symbol.version_offset, _UNVERSIONED)
  return bytes(repaired)
