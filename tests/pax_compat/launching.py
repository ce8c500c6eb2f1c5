"""Scripts and functions in separate processes, for tests."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence

from tests.pax_compat import forking

# For a process that takes seconds on an idle machine. Below pytest's
# `faulthandler_timeout`, so that a test fails with the process's output.
PATIENCE_SECONDS = 150
_ROOT = pathlib.Path(__file__).parents[2]


def run_script(
  script: str, *args, timeout: float = PATIENCE_SECONDS, **env: str
) -> subprocess.CompletedProcess:
  """Runs a script in a new interpreter; it sees the CPU only.

  For tests of what is imported; `run_function` is faster.

  Args:
    script: Python text, which may be indented.
    *args: its arguments.
    timeout: seconds after which it is ended, which is an error.
    **env: environment variables to set for it.

  Returns:
    The ended process, with `returncode`, `stdout` and `stderr` as text.
  """
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(script), *map(str, args)],
    env=environment(**env),
    capture_output=True,
    text=True,
    timeout=timeout,
  )


def run_function(
  function: Callable, *args, **env: str
) -> subprocess.CompletedProcess:
  """Runs a function in a forked process, which has imported JAX.

  Args:
    function: of a module, which that process imports.
    *args: its arguments, which it gets as strings.
    **env: environment variables to set for it, which JAX does not read while
      it is imported.

  Returns:
    The ended process, with `returncode`, `stdout` and `stderr` as text.
  """
  return forking.run(
    *calling(function),
    *map(str, args),
    env=environment(**env),
    timeout=PATIENCE_SECONDS,
  )


def calling(function: Callable) -> tuple[str, str]:
  """Returns what follows `python`, before the arguments of the function."""
  program = f"""
import importlib, sys
module = importlib.import_module({function.__module__!r})
module.{function.__name__}(*sys.argv[1:])
"""
  return '-c', program


def environment(**env: str) -> dict[str, str]:
  """Returns this process's environment, with `env` and our packages."""
  return os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(_ROOT)} | env


def flags_of_devices(count: int) -> str:
  """Returns the XLA_FLAGS of this process with as many CPU devices."""
  ours = os.environ.get('XLA_FLAGS', '')
  # XLA ends a process one of whose devices is later than others, by 40 seconds
  # unless it is told otherwise. A busy machine is no faster.
  return (
    f'{ours} --xla_force_host_platform_device_count={count}'
    ' --xla_cpu_collective_call_terminate_timeout_seconds=600'
  )


def flags_of_long_runs() -> str:
  """Returns the XLA_FLAGS of this process, but for programs that run fast.

  Those of tests compile fast, which costs a run of hundreds of steps more.
  """
  return os.environ.get('XLA_FLAGS', '').replace(
    '--xla_backend_optimization_level=0', '--xla_backend_optimization_level=1'
  )


@contextlib.contextmanager
def free_port() -> Iterator[int]:
  """Gives a port for JAX's coordinator, which no one else gets meanwhile."""
  with socket.socket() as s:
    # So that process 0 may listen on it, and then JAX's coordinator, which
    # shares its port, too.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('localhost', 0))
    yield s.getsockname()[1]


def run_on_processes(
  function: Callable, count: int, *, devices: int = 1, args: Sequence = ()
) -> list[str]:
  """Runs a function in several forked processes that compute together.

  Args:
    function: of a module, such as those of `tests.on_processes`. JAX knows of
      the other processes before that module is imported.
    count: how many processes.
    devices: CPU devices that each of them has.
    args: arguments of the function, which gets them as strings.

  Returns:
    What each of them printed.
  """
  program = f'{function.__module__}:{function.__name__}'
  with contextlib.ExitStack() as stack:
    port = stack.enter_context(free_port())
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    started = []
    for index in range(count):
      process = forking.Process(
        ['-m', 'tests.on_processes', program, index, count, port, *args],
        env=environment(XLA_FLAGS=flags_of_devices(devices)),
        out=folder / f'{index}.out',
        err=folder / f'{index}.err',
      )
      stack.callback(process.kill)
      started.append(process)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (codes := {process.poll() for process in started}) != {0}:
      # One that fails leaves the others waiting.
      failed = codes - {0, None} or time.monotonic() > deadline
      assert not failed, '\n'.join(
        (folder / f'{i}.err').read_text() for i in range(count)
      )
      time.sleep(0.02)
    return [(folder / f'{i}.out').read_text() for i in range(count)]
