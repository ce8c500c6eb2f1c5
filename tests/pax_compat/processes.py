"""Python scripts in processes of their own, for tests."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap
from concurrent import futures

_ROOT = pathlib.Path(__file__).parents[2]


def run_script(
  script: str, *args, timeout: float = 300, **env: str
) -> subprocess.CompletedProcess:
  """Runs a script, indented as it may be; it sees the CPU only.

  Args:
    script: Python text.
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


def environment(**env: str) -> dict[str, str]:
  """Returns this process's environment, with `env` and our packages."""
  return os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(_ROOT)} | env


def flags_of_devices(count: int) -> str:
  """Returns the XLA_FLAGS of this process with as many CPU devices."""
  ours = os.environ.get('XLA_FLAGS', '')
  return f'{ours} --xla_force_host_platform_device_count={count}'


def run_on_eight_devices(script: str, *args) -> str:
  """Runs a script on eight CPU devices and returns what it printed."""
  done = run_script(script, *args, XLA_FLAGS=flags_of_devices(8))
  assert done.returncode == 0, done.stderr
  return done.stdout


def run_on_processes(script: str, count: int, *, devices: int = 1) -> list[str]:
  """Runs a script in several processes that compute together.

  Args:
    script: Python text; JAX knows of the other processes when it begins.
    count: how many processes.
    devices: CPU devices that each of them has.

  Returns:
    What each of them printed.
  """
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  begin = f'import jax, sys\njax.distributed.initialize({address!r}, {count}, '
  text = begin + 'int(sys.argv[1]))\n' + textwrap.dedent(script)
  started = [
    subprocess.Popen(
      [sys.executable, '-c', text, str(index)],
      env=environment(XLA_FLAGS=flags_of_devices(devices)),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index in range(count)
  ]
  try:
    # At the same time: one whose pipe is full would stop, and so would others.
    with futures.ThreadPoolExecutor(count) as pool:
      ended = list(pool.map(lambda p: p.communicate(timeout=300), started))
  finally:
    for process in started:
      process.kill()
  for process, (_, errors) in zip(started, ended, strict=True):
    assert process.returncode == 0, errors
  # The library between them prints lines of its own.
  return [
    ''.join(
      line
      for line in output.splitlines(keepends=True)
      if not line.startswith('[Gloo]')
    )
    for output, _ in ended
  ]
