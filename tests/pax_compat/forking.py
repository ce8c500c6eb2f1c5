"""Programs in processes that have imported what takes long before.

Each is a process of its own, forked by Python's fork server from one that has
imported TensorFlow, JAX and the trainer, and has run nothing: a program that
takes seven seconds of processor time until it begins takes one. What is about
the start of a process, or about what is imported, needs a new interpreter.
"""

import atexit
import contextlib
import functools
import multiprocessing
import os
import pathlib
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, spawn

from pax_compat.cli import huge_pages

# Imports all of them.
_IMPORTED = 'tests.pax_compat.forked_imports'


class Process:
  """A Python program in a forked process, which has methods of `Popen`."""

  def __init__(
    self,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    out: pathlib.Path,
    err: pathlib.Path,
  ):
    """Starts it.

    Args:
      command: what follows `python`: `-m` and a module or `-c` and a text, then
        arguments.
      env: its environment, but for what JAX reads while it is imported.
      out: file to which its standard output goes.
      err: file to which its errors go.
    """
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload([_IMPORTED])
    # The fork server starts with it, so its children really have huge pages.
    # One whose environment does not say so would replace itself by a new
    # interpreter.
    env = huge_pages.with_setting(env) or dict(env)
    with _interpreter(env):
      forkserver.ensure_running()
    for path in (out, err):
      path.write_bytes(b'')
    self._command = list(map(str, command))
    self._process = context.Process(
      target=_as_program, args=(self._command, env, [str(out), str(err)])
    )
    self._process.start()

  @property
  def pid(self) -> int:
    return self._process.pid

  @property
  def returncode(self) -> int | None:
    return self._process.exitcode

  def poll(self) -> int | None:
    return self._process.exitcode

  def wait(self, timeout: float | None = None) -> int:
    self._process.join(timeout)
    if self.returncode is None:
      raise subprocess.TimeoutExpired(self._command, timeout)
    return self.returncode

  def send_signal(self, number: int):
    if self.poll() is None:
      os.kill(self._process.pid, number)

  def kill(self):
    self.send_signal(signal.SIGKILL)


def run(
  *command: str, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess:
  """Runs a program to its end.

  Args:
    *command: what follows `python`, see `Process`.
    env: its environment, but for what JAX reads while it is imported.
    timeout: seconds after which it is killed, which is an error.

  Returns:
    The ended process, with `returncode`, `stdout` and `stderr` as text.
  """
  with tempfile.TemporaryDirectory() as folder:
    out, err = (pathlib.Path(folder) / name for name in ('out', 'err'))
    process = Process(command, env=env, out=out, err=err)
    try:
      process.wait(timeout)
    except subprocess.TimeoutExpired as e:
      e.output, e.stderr = out.read_text(), err.read_text()
      raise
    finally:
      process.kill()
      process.wait()
    return subprocess.CompletedProcess(
      command, process.returncode, out.read_text(), err.read_text()
    )


@contextlib.contextmanager
def _interpreter(env: Mapping[str, str]) -> Iterator[None]:
  """Makes `multiprocessing` start interpreters with that environment.

  Without a change of this process's own, which a thread of TensorFlow may read
  at the same time.
  """
  ours = spawn.get_executable()
  settings = [f'{name}={value}' for name, value in env.items()]
  script = pathlib.Path(_folder().name, 'python')
  command = shlex.join(['env', '-i', *settings, sys.executable])
  script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
  script.chmod(0o700)
  spawn.set_executable(str(script))
  try:
    yield
  finally:
    spawn.set_executable(ours)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
  """Returns a folder that stays as long as this process."""
  return tempfile.TemporaryDirectory()


def _as_program(command, env, streams):
  """Makes this process, which was forked just now, that program's."""
  for number, path in enumerate(streams, 1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
  os.environ.clear()
  os.environ.update(env)
  ours = env.get('PYTHONPATH', '').split(os.pathsep)
  sys.path[:] = [*ours, *(path for path in sys.path if path not in ours)]
  flag, program, *arguments = command
  try:
    if flag == '-m':
      sys.argv = [program, *arguments]
      runpy.run_module(program, run_name='__main__', alter_sys=True)
    else:
      assert flag == '-c', command
      sys.argv = ['-c', *arguments]
      sys.path.insert(0, '')  # As an interpreter does.
      main = sys.modules['__main__'] = types.ModuleType('__main__')
      exec(compile(program, '<string>', 'exec'), vars(main))
  finally:
    # What the interpreter does at its end, and a forked process does not.
    threading._shutdown()
    atexit._run_exitfuncs()
