"""Whole runs in processes of their own, and what they leave behind."""

import contextlib
import hashlib
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import orbax.checkpoint as ocp

from pax_compat.metrics import time_use
from tests.pax_compat import forking
from tests.pax_compat.launching import PATIENCE_SECONDS, environment, free_port

ROOT = pathlib.Path(__file__).parents[2]
COUNTING = 'tests.pax_compat.counting_experiment.Counting'
LINGVO = 'lm.python_docs.TransformerLmTiny'
# Packages that an answer from main should not wait for.
SLOW_TO_IMPORT = {'tensorflow', 'lingvo', 'jax', 'jaxlib', 'flax', 'orbax'}
# How LINGVO is listed.
LISTED_LINGVO = (
  f'{LINGVO} A decoder of four layers and 0.8 million parameters,'
  ' one token a letter.'
)
# What differs between two runs of the same steps.
_CLOCKED = (
  *('steps_per_second', 'tokens_per_second', 'input_wait_fraction'),
  *(f'time_use/{kind}' for kind in (*time_use.KINDS, 'lost')),
)


class Run:
  """A process of `python -m pax_compat.main` that is under way.

  Its output goes to files, which are read as it grows. It is killed at the end
  of a `with` block.
  """

  def __init__(self, command: list[str], *, output: pathlib.Path, env: dict):
    output.mkdir(parents=True, exist_ok=True)
    self._out, self._err = output / 'stdout.txt', output / 'stderr.txt'
    self.process = forking.Process(
      command, env=env, out=self._out, err=self._err
    )

  def __enter__(self) -> 'Run':
    return self

  def __exit__(self, *unused_error):
    self.process.kill()
    self.process.wait()

  @property
  def stdout(self) -> str:
    return self._out.read_text()

  @property
  def stderr(self) -> str:
    return self._err.read_text()

  def wait_until(self, condition):
    """Waits until something is so; fails if the process ends before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
      assert self.process.poll() is None, self.stdout + self.stderr
      assert time.monotonic() < deadline, self.stdout + self.stderr
      time.sleep(0.02)

  def end(self) -> int:
    """Waits for the end and returns the exit status."""
    return self.process.wait(PATIENCE_SECONDS)


def start(command: list, *, output: pathlib.Path, settings=None, **env) -> Run:
  """Starts a Python process, with its libraries imported before.

  Args:
    command: what follows `python`.
    output: folder for what it prints.
    settings: of the counting experiment, where they differ from its own.
    **env: environment variables.
  """
  return Run(
    list(map(str, command)), output=output, env=_environment(settings, env)
  )


def flags(folder: pathlib.Path, *more: str, exp: str = COUNTING) -> list:
  """Returns the arguments that train an experiment in a folder."""
  return [
    *('-m', 'pax_compat.main'),
    *(f'--exp={exp}', f'--job_log_dir={folder}'),
    *more,
  ]


@contextlib.contextmanager
def two_processes(folder, output, *settings, more=(), exp=COUNTING, **env):
  """Trains on two processes, of which each has settings; yields both.

  Args:
    folder: of the run.
    output: folder for what they print.
    *settings: of the counting experiment, for each of them.
    more: flags.
    exp: the experiment.
    **env: environment variables.
  """
  with contextlib.ExitStack() as stack:
    port = stack.enter_context(free_port())
    yield [
      stack.enter_context(
        start(
          flags(
            folder,
            f'--server_addr=localhost:{port}',
            '--num_hosts=2',
            f'--host_idx={index}',
            *more,
            exp=exp,
          ),
          output=output / str(index),
          settings=settings[index],
          **env,
        )
      )
      for index in range(2)
    ]


def main(*arguments, settings=None, **env) -> subprocess.CompletedProcess:
  """Runs `python -m pax_compat.main` to its end, as `forked` does."""
  return forked('-m', 'pax_compat.main', *arguments, settings=settings, **env)


def forked(*command, settings=None, **env) -> subprocess.CompletedProcess:
  """Runs `python -m` to its end, with its libraries imported before.

  But for an `env` that JAX reads while it is imported.
  """
  if any(name.startswith('JAX_') for name in env):
    return python(*command, settings=settings, **env)
  return forking.run(
    *map(str, command),
    env=_environment(settings, env),
    timeout=PATIENCE_SECONDS,
  )


def python(*command, settings=None, **env) -> subprocess.CompletedProcess:
  """Runs a Python process to its end."""
  return subprocess.run(
    [sys.executable, *map(str, command)],
    env=_environment(settings, env),
    capture_output=True,
    text=True,
    timeout=PATIENCE_SECONDS,
  )


def listed(done: subprocess.CompletedProcess) -> list[str]:
  """Returns the lines of a `--list` that ended, single spaces in between."""
  return [' '.join(line.split()) for line in done.stdout.splitlines()]


def traced(*command) -> tuple[subprocess.CompletedProcess, set[str]]:
  """Runs Python; returns the ended process and the packages it imported."""
  done = python('-X', 'importtime', *command)
  lines = [
    line for line in done.stderr.splitlines() if line.startswith('import time:')
  ]
  assert len(lines) > 50
  names = [line.rpartition('|')[2].strip() for line in lines]
  return done, {name.partition('.')[0] for name in names}


def _environment(settings: dict | None, env: dict[str, str]) -> dict[str, str]:
  ours = {'COUNTING': json.dumps(settings or {})}
  return environment(**ours | env)


def train(folder: pathlib.Path, *more: str, exp: str = COUNTING, **kwargs):
  """Trains the experiment to its end, as `main`; asserts that it succeeds."""
  done = forked(*flags(folder, *more, exp=exp), **kwargs)
  assert done.returncode == 0, done.stdout + done.stderr
  return done


def assert_mistake(done: subprocess.CompletedProcess, *words: str):
  """Asserts that a process ended as after a user's mistake, and said why."""
  assert done.returncode == 2, done.stdout + done.stderr
  assert 'Traceback' not in done.stderr, done.stderr
  _, *errors = f'\n{done.stderr}'.split('\nerror: ')
  assert len(errors) == 1, done.stderr
  [said] = errors
  for word in words:
    assert word in said, f'{word!r} is not in: {said}'


def metrics(folder: pathlib.Path) -> dict[tuple[int, str, str], float]:
  """Returns metrics.jsonl as (step, split, name) -> value, without rates.

  Asserts that nothing is said twice.
  """
  found = {}
  for line in (folder / 'metrics.jsonl').read_text().splitlines():
    fields = json.loads(line)
    key = fields['step'], fields['split'], fields['name']
    assert key not in found, f'{key} is there twice'
    found[key] = fields['value']
  return {k: v for k, v in found.items() if k[2] not in _CLOCKED}


def losses(folder: pathlib.Path, split: str = 'train') -> list[float]:
  """Returns the losses of a split, in the order of their steps."""
  return [
    value
    for (_, s, name), value in sorted(metrics(folder).items())
    if (s, name) == (split, 'loss')
  ]


def steps_saved(folder: pathlib.Path) -> list[int]:
  """Returns the steps that have a committed checkpoint."""
  manifests = (folder / 'checkpoints' / 'manifests').glob('*.json')
  return sorted(int(path.stem) for path in manifests)


def state(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
  """Returns the arrays of a checkpoint by path, straight from its files."""
  path = (folder / 'checkpoints' / str(step) / 'state').absolute()
  restored = ocp.StandardCheckpointer().restore(path)
  return {name: np.asarray(array) for name, array in restored.items()}


def assert_same_state(one: pathlib.Path, other: pathlib.Path, step: int):
  """Asserts that two runs saved the same bits at a step."""
  left, right = state(one, step), state(other, step)
  assert left.keys() == right.keys() and left
  for path, array in left.items():
    assert array.dtype == right[path].dtype, path
    assert array.tobytes() == right[path].tobytes(), path


def contents(folder: pathlib.Path) -> dict[str, str]:
  """Returns a digest of each file in a folder, and None for each folder."""
  return {
    str(path.relative_to(folder)): (
      hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    )
    for path in sorted(folder.rglob('*'))
  }


def truncate(folder: pathlib.Path, step: int):
  """Cuts the end off the largest file of a checkpoint."""
  files = (folder / 'checkpoints' / str(step)).rglob('*')
  largest = max(
    (p for p in files if p.is_file()), key=lambda p: p.stat().st_size
  )
  largest.write_bytes(largest.read_bytes()[:-7])
