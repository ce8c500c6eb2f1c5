"""Times a process from its start to its first train step; the peer is bare JAX.

    python -m benchmarks.first_step --rounds=5

A small Transformer language model (4 layers of 256 dims, 8,192 tokens, 8 rows
of 256) is trained with Adam: by `pax_compat.main`, without compiled programs
(cold) and with those of the run before (warm), and by one jitted function
(bare, see `bare_lm`), which is compiled each time. Each is a new process, timed
until it prints that its first step is done, with imports, initial weights and
all that a run writes and prints until then. Memory is the largest that the
process had.

A round starts each once. A ratio is the median over the rounds of our time over
that of the bare process in the same round, so that other load affects both. The
goals are 1.5 cold and 0.75 warm.

Measured 2026-11-27, two cores of an AMD EPYC, otherwise idle, JAX 0.10.2,
--rounds=5:

    process   first step s  peak MB  ratio to bare
    bare              7.43     1043           1.00
    cold              8.92      951           1.19
    warm              4.94      742           0.69
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from absl import logging

from benchmarks import command_line

# Class attributes of the experiment.
SIZES = dict(
  NUM_LAYERS=4,
  MODEL_DIMS=256,
  HIDDEN_DIMS=1024,
  NUM_HEADS=4,
  VOCAB_SIZE=8192,
  PERCORE_BATCH_SIZE=8,
  MAX_SEQ_LEN=256,
)
_EXPERIMENT = 'tasks.lm.params.lm_cloud.LmCloudTransformerAdam'
# What a process prints first once its first step is done.
_DONE = 'step 1'


class Start(NamedTuple):
  """A start of a process.

  Attributes:
    seconds: until its first step was done.
    megabytes: the largest memory that it had.
  """

  seconds: float
  megabytes: float


def start(command: Sequence[str]) -> Start:
  """Runs a Python module until it ends, and times its first step.

  Args:
    command: the module and its arguments.

  Raises:
    RuntimeError: it fails, or does not print that its first step is done.
  """
  seconds = None
  with tempfile.TemporaryFile('w+') as log:
    began = time.monotonic()
    process = subprocess.Popen(
      [sys.executable, '-m', *command],
      stdout=subprocess.PIPE,
      stderr=log,
      text=True,
    )
    for line in process.stdout:
      if seconds is None and line.startswith(_DONE):
        seconds = time.monotonic() - began
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or seconds is None:
      log.seek(0)
      raise RuntimeError(f'{" ".join(command)} failed:\n{log.read()}')
  return Start(seconds, usage.ru_maxrss * 1024 / 1e6)


def ours(folder: pathlib.Path, sizes: Mapping[str, int]) -> list[str]:
  """Returns the command of a new run of one step.

  Args:
    folder: has the compiled programs, and gets the run.
    sizes: class attributes of the experiment.
  """
  log_dir = tempfile.mkdtemp(dir=folder)
  return [
    'pax_compat.main',
    f'--exp={_EXPERIMENT}',
    f'--job_log_dir={log_dir}',
    f'--compilation_cache_dir={folder / "compiled"}',
    *(f'--attr={name}={value}' for name, value in sizes.items()),
    '--attr=ATTEN_LOGIT_CAP=0.0',
    '--set=task.train.num_train_steps=1',
    '--set=task.train.eval_interval_steps=0',
  ]


def bare(sizes: Mapping[str, int]) -> list[str]:
  """Returns the command of one step of the bare function."""
  return ['benchmarks.bare_lm', json.dumps(dict(sizes))]


def measure(
  rounds: int, sizes: Mapping[str, int] = SIZES
) -> dict[str, list[Start]]:
  """Returns the starts of `bare`, `cold` and `warm` in each round."""
  found: dict[str, list[Start]] = {'bare': [], 'cold': [], 'warm': []}
  for number in range(rounds):
    logging.info('round %d of %d', number + 1, rounds)
    found['bare'].append(start(bare(sizes)))
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      for kind in ('cold', 'warm'):
        found[kind].append(start(ours(folder, sizes)))
  return found


def summary(found: Mapping[str, Sequence[Start]]) -> dict[str, dict]:
  """Returns medians of `measure` by kind: seconds, megabytes, ratio to bare."""
  return {
    kind: {
      'seconds': statistics.median(one.seconds for one in starts),
      'megabytes': statistics.median(one.megabytes for one in starts),
      'ratio': statistics.median(
        one.seconds / other.seconds
        for one, other in zip(starts, found['bare'], strict=True)
      ),
    }
    for kind, starts in found.items()
  }


def table(result: Mapping[str, Mapping[str, float]]) -> str:
  """Returns a summary as text."""
  lines = ['process   first step s  peak MB  ratio to bare']
  for kind, row in result.items():
    lines.append(
      f'{kind:<8}{row["seconds"]:14.2f}{row["megabytes"]:9.0f}'
      f'{row["ratio"]:15.2f}'
    )
  return '\n'.join(lines)


def main():
  """Measures, prints the table, and writes the JSON."""
  command_line.run('first_step', lambda rounds: summary(measure(rounds)), table)


if __name__ == '__main__':
  logging.set_verbosity(logging.INFO)
  main()
