"""Measures the import of a large Lingvo checkpoint.

    python -m benchmarks.checkpoint_import --folder=/large/disk

It writes a synthetic checkpoint of a Transformer language model with about
`--parameters` parameters, and zero, one or two optimizer slots for each. Then
it imports it like `adaptors.lingvo_checkpoint convert`, and prints:

*   the rise of resident memory during the import, and the limit: the state plus
    twice its largest array;
*   the speed of the import, and of a plain copy of the checkpoint's files in
    the same run. An import writes each array twice: to a staging file, from
    which an interrupted import resumes, and to the checkpoint;
*   for an import killed (SIGKILL) at half of the bytes, how many arrays the
    next import made again, and its time.

It needs four times the state's size on disk. Arrays do not stay in memory while
they are written, so memory rises by much less than the state.

Measured 2026-11-22, two cores of an AMD EPYC shared with eight other programs,
--parameters=1e9 --optimizer=SGD:

    state: 3.96 GB, its largest array 0.27 GB
    resident memory rose by 0.49 GB, limit 4.50 GB
    37 MB/s imported, 50 MB/s copied, ratio 0.74
    after the kill 0 of 124 arrays were made again, in 224 s; the whole import
    took 107 s
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from adaptors import lingvo_runtime
from adaptors.checkpoints import exporting
from adaptors.experiments import lingvo_experiment
from adaptors.lingvo_checkpoint import converting, staging
from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import checkpoints, experiment_sources

_REGISTERED = 'lm.python_docs.TransformerLmTiny'
_NAME = 'checkpoint_import'
# With zero, one and two slots per parameter.
_OPTIMIZERS = ('SGD', 'Adagrad', 'Adam')
_STEP = 5
_POLL_SECONDS = 0.02


class Sizes(NamedTuple):
  """The size of a model.

  Attributes:
    dims: model dimension.
    layers: number of layers.
  """

  dims: int
  layers: int

  @property
  def parameters(self) -> int:
    """Approximate number: 12 d^2 per layer, 32 d^2 in table and softmax."""
    return (12 * self.layers + 32) * self.dims**2


def sizes_of(parameters: float, layers: int) -> Sizes:
  """Returns sizes with approximately this number of parameters."""
  dims = (parameters / Sizes(1, layers).parameters) ** 0.5
  return Sizes(max(64, 64 * round(dims / 64)), layers)


def experiment(
  sizes: Sizes, optimizer: str, logdir: pathlib.Path | None = None
) -> lingvo_experiment.LingvoExperiment:
  """Returns the experiment.

  Args:
    sizes: of the model.
    optimizer: its class in Lingvo.
    logdir: of the Lingvo run that it starts from.
  """
  options = experiment_sources.SourceOptions()
  registered = type(lookup.find_model_params(_REGISTERED, options))
  module = lingvo_runtime.module('lingvo.core.optimizer')

  class Wide(registered):
    """The same with other sizes."""

    MODEL_DIM = sizes.dims
    HIDDEN_DIM = 4 * sizes.dims
    VOCAB_SIZE = 16 * sizes.dims
    NUM_LAYERS = sizes.layers

    def Task(self):
      params = super().Task()
      params.train.optimizer = getattr(module, optimizer).Params()
      return params

  return lingvo_experiment.LingvoExperiment(
    name=_NAME,
    model_params=Wide(),
    options=LingvoOptions(lingvo_logdir=logdir and str(logdir)),
  )


class _LazyArray:
  """An array of a state with random values, computed when used."""

  def __init__(self, like: jax.ShapeDtypeStruct):
    self.shape = like.shape
    self._dtype = like.dtype

  def __array__(self, dtype=None, copy=None):
    del dtype, copy
    rng = np.random.default_rng(self.shape)
    return rng.random(self.shape, np.float32).astype(self._dtype)

  def __int__(self):
    return _STEP


def make(made: lingvo_experiment.LingvoExperiment, folder: pathlib.Path):
  """Writes a synthetic checkpoint as a Lingvo run would.

  Args:
    made: the experiment.
    folder: of the run.
  """
  with converting.program_of(made) as (task_program, _):
    state = jax.tree.map(_LazyArray, task_program.abstract_state)
    exporting.write(state, made.checkpoint_metadata, folder / 'train')


def copy_files(source: pathlib.Path, to: pathlib.Path) -> dict[str, float]:
  """Copies the files of a folder; returns `bytes` and `seconds`."""
  to.mkdir()
  start, size = time.perf_counter(), 0
  for file in source.iterdir():
    shutil.copyfile(file, to / file.name)
    with (to / file.name).open('rb+') as copied:
      os.fsync(copied.fileno())
    size += file.stat().st_size
  seconds = time.perf_counter() - start
  shutil.rmtree(to)
  return {'bytes': size, 'seconds': seconds}


def measured_import(
  made: lingvo_experiment.LingvoExperiment, folder: pathlib.Path
) -> dict[str, float]:
  """Imports the checkpoint that an experiment starts from.

  Args:
    made: the experiment.
    folder: the new run's.

  Returns:
    `bytes` of the state, `largest` of its arrays, `seconds`, and `risen`, the
    largest rise of resident memory in bytes.
  """
  with converting.program_of(made) as (task_program, _):
    leaves = jax.tree.leaves(task_program.abstract_state)
  sizes = [leaf.size * leaf.dtype.itemsize for leaf in leaves]
  made.start()
  _load_orbax()
  before = _resident('VmRSS')
  # Resets the peak.
  pathlib.Path('/proc/self/clear_refs').write_text('5')
  start = time.perf_counter()
  converting.to_jax(made, _NAME, folder, lambda line: None)
  return {
    'bytes': sum(sizes),
    'largest': max(sizes),
    'seconds': time.perf_counter() - start,
    'risen': _resident('VmHWM') - before,
  }


def _load_orbax():
  """Saves a tiny checkpoint, so that Orbax is initialized."""
  with tempfile.TemporaryDirectory() as folder:
    saver = checkpoints.Checkpointer(folder, max_to_keep=None)
    with contextlib.closing(saver):
      saver.save(0, {'x': np.zeros(1)}, {})


def _resident(field: str) -> int:
  """Returns bytes of resident memory: current (VmRSS) or peak (VmHWM)."""
  text = pathlib.Path('/proc/self/status').read_text()
  [line] = [x for x in text.splitlines() if x.startswith(f'{field}:')]
  return 1024 * int(line.split()[1])


class Staged:
  """The arrays that an import has staged so far.

  Attributes:
    found: (inode, modification time) by file name.
    size: bytes of all files.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder = folder / converting.STAGING
    self.found: dict[str, tuple[int, int]] = {}
    self.size = 0

  def look(self):
    """Updates `found` and `size`; deleted files stay in `found`."""
    self.size = 0
    for file in self._folder.glob('*.npy'):
      try:
        stat = file.stat()
      except FileNotFoundError:
        continue  # All are removed when the import is done.
      self.found[file.name] = stat.st_ino, stat.st_mtime_ns
      self.size += stat.st_size


def kill_half_way(
  command: list[str], folder: pathlib.Path, size: int
) -> Staged:
  """Runs an import that is killed half way; returns the staged arrays.

  Args:
    command: the command of the import.
    folder: the new run's.
    size: bytes of the state.

  Raises:
    RuntimeError: it was not killed.
  """
  command = [*command, f'--kill_at={size // 2}']
  status = subprocess.run(command).returncode
  if status != -signal.SIGKILL:
    raise RuntimeError(f'{" ".join(command)} exited with {status}')
  staged = Staged(folder)
  staged.look()
  return staged


def _kill_at(size: int, folder: pathlib.Path):
  """Makes this process kill itself once `size` bytes are staged.

  Another process that watches the folder could be too late.

  Args:
    size: number of bytes.
    folder: the new run's.
  """
  get, staged = staging.Staging.get, Staged(folder)

  def get_or_die(self, name, make):
    def make_or_die():
      staged.look()
      if staged.size >= size:
        os.kill(os.getpid(), signal.SIGKILL)
      return make()

    return get(self, name, make_or_die)

  staging.Staging.get = get_or_die


def resume(
  run: Callable[[], Any], folder: pathlib.Path, left: Staged
) -> dict[str, float]:
  """Imports again after a kill.

  Args:
    run: runs the import.
    folder: the new run's.
    left: arrays staged by the killed import.

  Returns:
    The number of arrays `left`, how many of them were made `again`, and the
    `seconds`.
  """
  staged, is_over = Staged(folder), threading.Event()
  staged.look()

  def watch():
    while not is_over.wait(_POLL_SECONDS):
      staged.look()

  watching = threading.Thread(target=watch)
  watching.start()
  start = time.perf_counter()
  try:
    run()
  finally:
    seconds = time.perf_counter() - start
    is_over.set()
    watching.join()
  return {
    'left': len(left.found),
    'again': sum(
      staged.found.get(name) != stat for name, stat in left.found.items()
    ),
    'seconds': seconds,
  }


def summary(result: Mapping[str, Any]) -> str:
  """Returns the result as text."""
  done, copy, resumed = result['import'], result['copy'], result['resumed']
  limit = done['bytes'] + 2 * done['largest']
  speed = done['bytes'] / done['seconds']
  copied = copy['bytes'] / copy['seconds']
  return '\n'.join(
    [
      f'state: {done["bytes"] / 1e9:.2f} GB, its largest array'
      f' {done["largest"] / 1e9:.2f} GB',
      f'resident memory rose by {done["risen"] / 1e9:.2f} GB, limit'
      f' {limit / 1e9:.2f} GB',
      f'{speed / 1e6:.0f} MB/s imported, {copied / 1e6:.0f} MB/s copied, ratio'
      f' {speed / copied:.2f}',
      f'after the kill {resumed["again"]} of {resumed["left"]} arrays were made'
      f' again, in {resumed["seconds"]:.0f} s; the whole import took'
      f' {done["seconds"]:.0f} s',
    ]
  )


def command(
  sizes: Sizes, optimizer: str, folder: pathlib.Path, phase: str
) -> list[str]:
  """Returns the command of one of the processes that `main` starts."""
  return [
    sys.executable,
    '-m',
    'benchmarks.checkpoint_import',
    f'--parameters={sizes.parameters}',
    f'--layers={sizes.layers}',
    f'--optimizer={optimizer}',
    f'--folder={folder}',
    f'--phase={phase}',
  ]


def _run_phase(
  phase: str,
  sizes: Sizes,
  optimizer: str,
  folder: pathlib.Path,
  kill_at: int | None,
):
  """Runs a phase in this process."""
  old, new = folder / 'old', folder / 'new'
  if phase == 'import':
    if kill_at is not None:
      _kill_at(kill_at, new)
    converting.to_jax(experiment(sizes, optimizer, old), _NAME, new, print)
    return
  make(experiment(sizes, optimizer), old)
  result = {
    'copy': copy_files(old / 'train', folder / 'copied'),
    'import': measured_import(experiment(sizes, optimizer, old), new),
  }
  shutil.rmtree(new)
  (folder / 'result.json').write_text(json.dumps(result))


def main():
  """Measures, prints the summary, and writes the JSON."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.checkpoint_import'
  )
  parser.add_argument(
    '--parameters', type=float, default=1e9, help='approximate number'
  )
  parser.add_argument('--layers', type=int, default=17, help='of the model')
  parser.add_argument(
    '--optimizer', choices=_OPTIMIZERS, default='Adagrad', help="Lingvo's"
  )
  parser.add_argument(
    '--folder', type=pathlib.Path, help='for all files; by default in /tmp'
  )
  parser.add_argument('--json', type=pathlib.Path, help='file for the results')
  parser.add_argument('--phase', help=argparse.SUPPRESS)
  parser.add_argument('--kill_at', type=int, help=argparse.SUPPRESS)
  options = parser.parse_args()
  sizes = sizes_of(options.parameters, options.layers)
  if options.phase:
    _run_phase(
      options.phase,
      sizes,
      options.optimizer,
      options.folder,
      options.kill_at,
    )
    return
  with tempfile.TemporaryDirectory(dir=options.folder) as name:
    folder = pathlib.Path(name)
    whole, again = (
      command(sizes, options.optimizer, folder, phase)
      for phase in ('whole', 'import')
    )
    subprocess.run(whole, check=True)
    result = json.loads((folder / 'result.json').read_text())
    size = result['import']['bytes']
    left = kill_half_way(again, folder / 'new', size)
    result['resumed'] = resume(
      lambda: subprocess.run(again, check=True), folder / 'new', left
    )
  print(summary(result))
  if options.json:
    options.json.write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
  main()
