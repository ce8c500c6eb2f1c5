"""Python scripts in processes of their own, for tests."""

import os
import pathlib
import subprocess
import sys
import textwrap

_ROOT = pathlib.Path(__file__).parents[2]


def run_script(script: str, *args, **env: str) -> subprocess.CompletedProcess:
  """Runs a script, indented as it may be; it sees the CPU only.

  Args:
    script: Python text.
    *args: its arguments.
    **env: environment variables to set for it.

  Returns:
    The ended process, with `returncode`, `stdout` and `stderr` as text.
  """
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(script), *map(str, args)],
    env=environment(**env),
    capture_output=True,
    text=True,
    timeout=300,
  )


def environment(**env: str) -> dict[str, str]:
  """Returns this process's environment, with `env` and our packages."""
  return os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(_ROOT)} | env


def run_on_eight_devices(script: str, *args) -> str:
  """Runs a script on eight CPU devices and returns what it printed."""
  done = run_script(
    script, *args, XLA_FLAGS='--xla_force_host_platform_device_count=8'
  )
  assert done.returncode == 0, done.stderr
  return done.stdout
