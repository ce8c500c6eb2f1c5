"""Loads Lingvo's native ops, from a repaired copy if needed."""

import dataclasses
import hashlib
import importlib.abc
import importlib.util
import pathlib
import re
import sys

from absl import logging

from adaptors.native import elf_symbols
from pax_compat import errors
from pax_compat.runs import files

# The dynamic loader's message, after the name of the library that is too old:
# version `GLIBC_2.38' not found (required by /somewhere/x_ops.so)
_TOO_OLD = re.compile(r"version `[^']+' not found \(required by ([^)]+)\)")


def load(package: str, name: str) -> None:
  """Loads a package's library of ops and registers it in `sys.modules`.

  The installed file is tried first. Only if this system lacks a symbol version
  that it needs, a repaired copy is loaded, from the user's cache folder. The
  installation is not changed.

  Args:
    package: the full name of the package, which must not be imported yet.
    name: the file's name without `.so`; the package imports the module of that
      name after `gen_`.

  Raises:
    UserError: the library cannot be repaired, or the copy cannot be written.
  """
  module_name = f'{package}.gen_{name}'
  if package in sys.modules or module_name in sys.modules:
    return
  library = _installed(package) / f'{name}.so'
  if not library.exists():
    # Lingvo may be linked statically, or be broken: its import will fail then.
    return
  sys.modules[module_name] = _load_library(library)


def load_when_imported(package: str, name: str) -> None:
  """Calls `load` when the package is imported. Later calls do nothing.

  Args:
    package: as in `load`.
    name: as in `load`.
  """
  finder = _Loading(package, name)
  if finder not in sys.meta_path:
    sys.meta_path.insert(0, finder)


@dataclasses.dataclass(frozen=True)
class _Loading(importlib.abc.MetaPathFinder):
  """Finds nothing, and loads the ops of a package before it is imported."""

  package: str
  name: str

  def find_spec(self, fullname, path=None, target=None):
    """Returns None."""
    if fullname == self.package:
      load(self.package, self.name)


def cache_folder() -> pathlib.Path:
  """Returns the folder of repaired copies."""
  return files.user_cache() / 'native_ops'


def repaired_copy(library: pathlib.Path) -> pathlib.Path:
  """Returns a copy of a library that loads on this system.

  The folder's name contains digests of the original and of the copy, so that
  versions, and systems that share a home folder, do not collide.

  Args:
    library: the installed file; it is only read.

  Raises:
    UserError: the library cannot be repaired, or the copy cannot be written.
  """
  original = library.read_bytes()
  try:
    content = elf_symbols.repair(original)
  except (elf_symbols.ElfError, elf_symbols.UnsafeSymbolError) as e:
    raise errors.UserError(
      f'{library} was built for a newer system than this one, and cannot be'
      f' made to load here: {e}; expected a newer Linux, or a Lingvo that was'
      ' built on this one'
    ) from e
  key = f'{_digest(original)}-{_digest(content)[:16]}'
  copy = cache_folder() / key / library.name
  # Compared in full: a damaged copy could do anything.
  if not (copy.is_file() and copy.read_bytes() == content):
    _write(copy, content)
    logging.info(
      '%s needs a newer system than this one; wrote the repaired copy %s',
      library,
      copy,
    )
  return copy


def _installed(package: str) -> pathlib.Path:
  """Returns the folder of a package of Lingvo, without importing it."""
  spec = importlib.util.find_spec('lingvo')
  if spec is None or not spec.submodule_search_locations:
    raise errors.UserError(
      "lingvo is not installed; install it with: pip install 'pax-compat"
      "[lingvo]'"
    )
  root = pathlib.Path(spec.submodule_search_locations[0])
  return root.joinpath(*package.split('.')[1:])


def _load_library(library: pathlib.Path):
  """Returns the ops of a library, or of its repaired copy."""
  import tensorflow as tf

  try:
    return tf.load_op_library(str(library))
  except tf.errors.NotFoundError as e:
    too_old = _TOO_OLD.search(str(e))
    if not too_old or too_old[1] != str(library):
      raise
  copy = repaired_copy(library)
  logging.debug(
    '%s needs a newer system than this one (%s); loading the repaired copy %s',
    library,
    too_old[0].partition(' (')[0],
    copy,
  )
  return tf.load_op_library(str(copy))


def _write(path: pathlib.Path, content: bytes):
  """Writes a file atomically, even if other processes write it too."""
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, content)
  except OSError as e:
    raise errors.UserError(
      f"cannot write a repaired copy of Lingvo's native ops to {path.parent}:"
      f' {e.strerror or e}; expected a writable folder, which the environment'
      ' variable XDG_CACHE_HOME can set'
    ) from e


def _digest(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
