"""Real native libraries of Lingvo, changed for tests so that nothing loads."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from tests.pax_compat import forking, launching

NEEDS_LINGVO = pytest.mark.skipif(
  not all(map(importlib.util.find_spec, ('lingvo', 'tensorflow'))),
  reason='needs the `lingvo` extra: Lingvo and TensorFlow',
)

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Versions that Lingvo's ops want, and names that no system will ever define.
# They are as long as the real ones, because they are written over them.
FUTURE = {
  b'\0GLIBC_2.38\0': b'\0GLIBC_9.99\0',
  b'\0GLIBCXX_3.4.32\0': b'\0GLIBCXX_9.9.99\0',
  b'\0CXXABI_1.3.15\0': b'\0CXXABI_9.9.99\0',
}


def lingvo_folder() -> pathlib.Path:
  """Returns the folder of the installed Lingvo, importing nothing."""
  spec = importlib.util.find_spec('lingvo')
  return pathlib.Path(spec.submodule_search_locations[0])


def x_ops() -> pathlib.Path:
  """Returns the file of Lingvo's core ops."""
  return lingvo_folder() / 'core' / 'ops' / 'x_ops.so'


def from_the_future() -> bytes:
  """Returns Lingvo's core ops as if built for a system newer than any."""
  data = x_ops().read_bytes()
  for name, future in FUTURE.items():
    assert data.count(name) == 1, name
    data = data.replace(name, future)
  return data


def shadow_lingvo(site: pathlib.Path, ops: bytes) -> pathlib.Path:
  """Makes an installation of Lingvo that differs in its core ops.

  Args:
    site: the folder to make it in, for PYTHONPATH.
    ops: the content of `x_ops.so`.

  Returns:
    The path of the `x_ops.so` in it.
  """
  source, target = lingvo_folder(), site / 'lingvo'
  for part in ('core', 'ops', None):
    target.mkdir(parents=True)
    for entry in source.iterdir():
      if entry.name not in (part, 'x_ops.so', '__pycache__'):
        (target / entry.name).symlink_to(entry)
    if part:
      source, target = source / part, target / part
  (target / 'x_ops.so').write_bytes(ops)
  return target / 'x_ops.so'


def environment(*sites: pathlib.Path, cache: pathlib.Path) -> dict[str, str]:
  """Returns the environment of a process that runs this checkout.

  Args:
    *sites: folders to import from before all others.
    cache: the user's cache folder.
  """
  path = os.pathsep.join(map(str, (*sites, ROOT)))
  return {**os.environ, 'PYTHONPATH': path, 'XDG_CACHE_HOME': str(cache)}


def run_python(
  program: str, *sites: pathlib.Path, cache: pathlib.Path, fresh: bool = False
) -> tuple[list[str], str]:
  """Runs a program in a separate process, in which it must succeed.

  Args:
    program: Python text.
    *sites: folders to import from before all others.
    cache: the user's cache folder.
    fresh: whether nothing is imported before. Otherwise TensorFlow is.

  Returns:
    The lines of its output, and what it wrote to stderr.
  """
  env = environment(*sites, cache=cache)
  if fresh:
    done = subprocess.run(
      [sys.executable, '-c', program], env=env, capture_output=True, text=True
    )
  else:
    done = forking.run(
      '-c', program, env=env, timeout=launching.PATIENCE_SECONDS
    )
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines(), done.stderr


def add_distribution(site: pathlib.Path, entry_points: str):
  """Makes installed metadata that declares the given entry points."""
  info = site / 'declares-1.dist-info'
  info.mkdir(parents=True)
  (info / 'METADATA').write_text(
    'Metadata-Version: 2.1\nName: declares\nVersion: 1\n'
  )
  (info / 'entry_points.txt').write_text(entry_points)
