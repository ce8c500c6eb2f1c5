"""Trial runs of experiments, each in a process of its own."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from adaptors.lingvo_registry.options import LingvoOptions
from adaptors.migrate.findings import Trial
from pax_compat.experiment_sources import SourceOptions

_LINES = 3  # Of a crashed process's output.


def run(
  name: str, options: SourceOptions, *, steps: int, timeout_seconds: float
) -> Trial:
  """Trains an experiment, reduced, and evaluates it once; it does not raise.

  Args:
    name: in the registry.
    options: for finding experiments.
    steps: number of training steps.
    timeout_seconds: after which the process is killed.
  """
  request = {
    'name': name,
    'steps': steps,
    'import_modules': options.import_modules,
    'module_flags': options.module_flags,
    'own': dataclasses.asdict(options.of(LingvoOptions)),
  }
  with tempfile.TemporaryDirectory() as folder:
    paths = [pathlib.Path(folder, n) for n in ('request', 'result')]
    paths[0].write_text(json.dumps(request), 'utf-8')
    command = [sys.executable, '-m', 'adaptors.migrate.trial', *map(str, paths)]
    try:
      done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_seconds,
        env=_environment(),
        text=True,
        errors='replace',
      )
    except subprocess.TimeoutExpired:
      return Trial(problem=f'not done after {timeout_seconds:.0f} seconds')
    if not paths[1].exists():
      return Trial(problem=_crash(done))
    result = json.loads(paths[1].read_text('utf-8'))
  metrics = result['metrics']
  evaluated = [v for split, v in metrics.items() if split.startswith('eval_')]
  return Trial(
    problem=result['problem'],
    seconds=result['seconds'],
    losses=tuple(metrics.get('train', ())),
    eval_losses=tuple(values[-1] for values in evaluated),
  )


def _environment() -> dict[str, str]:
  """Returns the environment: modules are found as in this process."""
  path = os.pathsep.join(filter(None, sys.path))
  return {**os.environ, 'PYTHONPATH': path}


def _crash(done: subprocess.CompletedProcess) -> str:
  """Describes the end of a process that wrote no result."""
  status = f'exited with {done.returncode}'
  if done.returncode < 0:
    status = f'was ended by {signal.Signals(-done.returncode).name}'
  last = [line.strip() for line in done.stdout.splitlines() if line.strip()]
  return f'its process {status}: {" | ".join(last[-_LINES:])}'
