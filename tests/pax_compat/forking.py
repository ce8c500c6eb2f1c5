"""Programs in processes that have imported what takes long before.

Each is a process of its own, forked by Python's fork server from one that has
imported TensorFlow, JAX and the trainer, and has run nothing: a program that
takes seven seconds of processor time until it begins takes one. What is about
the start of a process, or about what is imported, needs a new interpreter.
"""

import atexit
import contextlib
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver

from pax_compat.cli import huge_pages

# Importing them starts no backend, whose threads a fork would lose, and defines
# none of our flags.
_IMPORTED = ('tensorflow', 'pax_compat.layers', 'pax_compat.trainer.run')


def run_module(
  module: str, *arguments: str, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess:
  """Runs a module to its end, as `python -m` does.

  Args:
    module: its name.
    *arguments: what follows it on the command line.
    env: its environment, but for what JAX reads while it is imported.
    timeout: seconds after which it is killed, which is an error.

  Returns:
    The ended process, with `returncode`, `stdout` and `stderr` as text.
  """
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(list(_IMPORTED))
  # The fork server starts with it, so its children really have huge pages. One
  # whose environment does not say so would replace itself by a new interpreter.
  env = huge_pages.with_setting(env) or env
  with _environment(env):
    forkserver.ensure_running()
  with tempfile.TemporaryDirectory() as folder:
    streams = [pathlib.Path(folder) / name for name in ('out', 'err')]
    process = context.Process(
      target=_as_program, args=(module, arguments, env, streams)
    )
    process.start()
    process.join(timeout)
    late = process.is_alive()
    if late:
      process.kill()
      process.join()
    out, err = (stream.read_text() for stream in streams)
  command = [module, *arguments]
  if late:
    raise subprocess.TimeoutExpired(command, timeout, out, err)
  return subprocess.CompletedProcess(command, process.exitcode, out, err)


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
  """Replaces this process's environment for a moment."""
  before = dict(os.environ)
  os.environ.clear()
  os.environ.update(env)
  try:
    yield
  finally:
    os.environ.clear()
    os.environ.update(before)


def _as_program(module, arguments, env, streams):
  """Makes this process, which was forked just now, that program's."""
  for number, path in enumerate(streams, 1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
  os.environ.clear()
  os.environ.update(env)
  ours = env.get('PYTHONPATH', '').split(os.pathsep)
  sys.path[:] = [*ours, *(path for path in sys.path if path not in ours)]
  sys.argv = [module, *arguments]
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  finally:
    # What the interpreter does at its end, and a forked process does not.
    threading._shutdown()
    atexit._run_exitfuncs()
