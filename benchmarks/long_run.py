"""A run of many steps: does its process grow?

    python -m benchmarks.long_run --run_folder=/tmp/long --run_steps=10000

trains a tiny native model in a process of its own, which evaluates and saves
every `--save_every` steps, and prints its resident memory, threads and open
files as it goes on. The status is 1 if the last fifth of the run has more of
them than the second fifth: `--slack_mb` of memory, or six threads or files. One
that is left by each save of 10,000 steps would make 120.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
from absl import app, flags

from benchmarks import command_line
from pax_compat import (
  base_experiment,
  base_input,
  experiment_registry,
  optimizers,
  tasks_lib,
)
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap

_FOLDER = flags.DEFINE_string(
  'run_folder', None, 'Folder of the run; it is new.'
)
_STEPS = flags.DEFINE_integer('run_steps', 10_000, 'Steps of the run.')
_EVERY = flags.DEFINE_integer(
  'save_every', 50, 'Steps between evaluations, and between checkpoints.'
)
_SLACK = flags.DEFINE_float(
  'slack_mb', 20.0, 'Memory that may be added, in MB.'
)
# A save in the background has some threads and files, at times.
_SLACK_OF_COUNTS = 5
# Looks at the process, at most.
_LOOKS = 400
_VOCAB, _LENGTH, _ROWS = 32, 16, 8


class RandomRows(base_input.BaseInput):
  """Rows of random tokens, [8, 16].

  Attributes:
    end: number of batches; None for no end.
  """

  end: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._read = 0

  def get_next(self) -> NestedMap:
    """Returns the next batch."""
    if self._read == self.end:
      raise StopIteration
    self._read += 1
    draw = np.random.default_rng(self._read)
    ids = draw.integers(_VOCAB, size=(_ROWS, _LENGTH + 1), dtype=np.int32)
    weights = np.ones([_ROWS, _LENGTH], np.float32)
    return NestedMap(
      ids=ids[:, :-1], labels=ids[:, 1:], paddings=1 - weights, weights=weights
    )

  def reset(self):
    self._read = 0

  def resume_at(self, step: int):
    self._read = step


@experiment_registry.register
class Tiny(base_experiment.BaseExperiment):
  """A decoder of one layer on random tokens."""

  def task(self):
    model = models.LanguageModel.config()
    model.lm_tpl.set(vocab_size=_VOCAB, model_dims=16)
    stack = model.lm_tpl.stacked_transformer_tpl.set(num_layers=1)
    stack.set(hidden_dims=32, num_heads=2)
    task = tasks_lib.SingleTask.config(model=model)
    task.train.learner.optimizer = optimizers.Adam.config(learning_rate=1e-3)
    return task

  def datasets(self):
    return [
      RandomRows.config(name='train', is_training=True),
      RandomRows.config(name='dev', end=2, reset_for_eval=True),
    ]


class Look(NamedTuple):
  """What a process has at a time.

  Attributes:
    step: the last step that it has printed.
    megabytes: its resident memory.
    threads: how many it has.
    files: how many are open: files, sockets and pipes.
  """

  step: int
  megabytes: float
  threads: int
  files: int


def look(pid: int, step: int) -> Look | None:
  """Returns what a process has; None if it has ended. For Linux."""
  folder = pathlib.Path('/proc') / str(pid)
  try:
    status = (folder / 'status').read_text()
    files = len(os.listdir(folder / 'fd'))
  except OSError:
    return None
  fields = dict(x.split(':', 1) for x in status.splitlines() if ':' in x)
  if 'VmRSS' not in fields:
    return None
  kilobytes = int(fields['VmRSS'].split()[0])
  return Look(step, kilobytes / 1024, int(fields['Threads']), files)


def growth(looks: list[Look]) -> Look:
  """Returns how much more the last fifth has than the second, by medians."""
  fifth = len(looks) // 5
  early, late = looks[fifth : 2 * fifth], looks[-fifth:]
  return Look(
    *(
      statistics.median(x[i] for x in late)
      - statistics.median(x[i] for x in early)
      for i in range(len(Look._fields))
    )
  )


def _watched(command: list[str], every: int) -> tuple[int, list[Look]]:
  """Runs a command; returns its status and looks at it, one per some steps."""
  looks: list[Look] = []
  process = subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
  )
  for line in process.stdout:
    words = line.split()
    if len(words) < 2 or words[0] != 'step':
      continue
    step = int(words[1].partition('/')[0])
    if looks and step < looks[-1].step + every:
      continue
    found = look(process.pid, step)
    if found is not None:
      looks.append(found)
  return process.wait(), looks


def main(argv):
  del argv
  began, steps, every = time.monotonic(), _STEPS.value, _EVERY.value
  train = 'task.train'
  settings = {
    'num_train_steps': steps,
    'eval_interval_steps': every,
    'save_interval_steps': every,
    'summary_interval_steps': every,
    'save_max_to_keep': 3,
  }
  status, looks = _watched(
    [
      *(sys.executable, '-m', 'pax_compat.main'),
      f'--exp={__spec__.name if __spec__ else __name__}.Tiny',
      f'--job_log_dir={_FOLDER.value}',
      *(f'--set={train}.{k}={v}' for k, v in settings.items()),
    ],
    max(steps // _LOOKS, 1),
  )
  if status or len(looks) < 10:
    raise app.UsageError(
      f'the run ended with status {status} after {len(looks)} looks at it'
    )
  print('    step  memory MB  threads  open files')
  shown = looks[:: max(len(looks) // 20, 1)]
  for x in (*shown, looks[-1]):
    print(f'{x.step:8d}  {x.megabytes:9.1f}  {x.threads:7d}  {x.files:10d}')
  more = growth(looks)
  print(
    f'{steps} steps in {time.monotonic() - began:.0f} s; the last fifth has'
    f' {more.megabytes:+.1f} MB, {more.threads:+g} threads and {more.files:+g}'
    ' open files more than the second'
  )
  command_line.write({'looks': [x._asdict() for x in looks]})
  return int(
    more.megabytes > _SLACK.value
    or max(more.threads, more.files) > _SLACK_OF_COUNTS
  )


if __name__ == '__main__':
  flags.mark_flag_as_required('run_folder')
  app.run(main)
