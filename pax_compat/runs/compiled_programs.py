"""JAX's persistent cache of compiled programs, on by default.

A program that was compiled before, by any run of the user on this kind of
machine, is read from the cache. JAX's keys contain the program, the compiler's
flags, the version of jaxlib and the kind of the devices, but no features of the
processor, so these are part of the folder's name.

Compiled programs are run: nobody else may be able to write the folder.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import stat

from absl import logging

from pax_compat import errors
from pax_compat.runs import files, job_dir, remote

_FOLDER = 'compiled'
_MAX_BYTES = 20 * 10**9
# JAX's default of 1 s leaves many small programs of a start to be compiled.
_MIN_COMPILE_SECONDS = 0.2


def use(folder: str | None):
  """Makes JAX use the cache.

  Args:
    folder: a path or a URL `gs://bucket/folder`; '' for no cache. None leaves
      what JAX was configured to use, or else takes a folder of the user.

  Raises:
    UserError: the folder cannot be used.
  """
  import jax  # Imported late: it takes a second.

  if folder == '':
    jax.config.update('jax_enable_compilation_cache', False)
    return
  if folder is None and jax.config.jax_compilation_cache_dir:
    return
  path = _made(folder)
  if path is None:
    return
  jax.config.update('jax_compilation_cache_dir', str(path))
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    jax.config.update(
      'jax_persistent_cache_min_compile_time_secs', _MIN_COMPILE_SECONDS
    )
  logging.debug(
    'compiled programs are kept in %s (--compilation_cache_dir)', path
  )


def _made(folder: str | None):
  """Returns the path of the folder; None if that of the user is unusable."""
  if folder is not None and remote.is_remote(folder):
    return job_dir.checked_path(folder)
  path = (
    files.user_cache() / _FOLDER if folder is None else pathlib.Path(folder)
  )
  path = path.absolute() / processor_digest()
  try:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(path)
  except OSError as e:
    if folder is None:
      logging.warning('programs are compiled at each start: %s', e)
      return None
    raise errors.UserError(
      f'--compilation_cache_dir={folder} cannot be used: {e.strerror or e}'
    ) from e
  _prune(path.parent)
  return path


def _check_owner(path: pathlib.Path):
  status = path.stat()
  others = stat.S_IWGRP | stat.S_IWOTH
  if status.st_uid != os.getuid() or status.st_mode & others:
    raise PermissionError(
      1, f'{path} can be written by others, whose programs would be run'
    )


def processor_digest() -> str:
  """Returns a digest of the system and the features of the processor."""
  described = [platform.system(), platform.machine()]
  with contextlib.suppress(OSError):
    lines = pathlib.Path('/proc/cpuinfo').read_text('utf-8').splitlines()
    names = ('model name', 'flags', 'Features', 'CPU part')
    described += sorted({one for one in lines if one.startswith(names)})
  text = '\n'.join(described)
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def _prune(folder: pathlib.Path):
  """Deletes the oldest files if the folder has become too large."""
  found = []
  for path in folder.rglob('*'):
    with contextlib.suppress(OSError):
      status = path.stat()
      if stat.S_ISREG(status.st_mode):
        used = max(status.st_atime, status.st_mtime)
        found.append((used, status.st_size, path))
  total = sum(size for _, size, _ in found)
  for _, size, path in sorted(found):
    if total <= _MAX_BYTES:
      return
    with contextlib.suppress(OSError):
      path.unlink()
    total -= size
