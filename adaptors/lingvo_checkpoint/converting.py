"""Converts checkpoints between Lingvo runs and runs of `pax_compat.main`."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from adaptors.checkpoints import exporting, files, importing, mapping, run_start
from adaptors.experiments.lingvo_experiment import LingvoExperiment
from adaptors.lingvo_checkpoint.staging import Staging
from pax_compat import checkpoints, errors
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.runs import job_dir
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.feeding import dataset_inputs

_CHECKPOINTS = 'checkpoints'
# Folder in which an import stages its arrays.
STAGING = 'import'


def to_jax(
  experiment: LingvoExperiment,
  name: str,
  job_log_dir: str | os.PathLike,
  print_line: Callable[[str], None],
):
  """Converts a Lingvo checkpoint to a checkpoint in a run's folder.

  After an interruption the same call resumes with the next tensor.

  Args:
    experiment: with the checkpoint as its `start()`.
    name: its name.
    job_log_dir: the run's folder, without checkpoints.
    print_line: prints a line for the user.

  Raises:
    UserError: the folder has checkpoints, or Lingvo's checkpoint does not fit.
  """
  start = experiment.start()
  if not isinstance(start, run_start.Start):
    raise errors.UserError(
      '--lingvo_logdir is required; expected the folder of a run of Lingvo'
    )
  folder = job_dir.local_path(job_log_dir)
  job_dir.claim(folder, name)
  with program_of(experiment) as (task_program, batch):
    # Limits the writer's buffers, else it would copy the whole state.
    leaves = jax.tree.leaves(task_program.abstract_state)
    largest = max(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    with _opened(folder, max_bytes_in_flight=largest) as saver:
      if saver.latest_step() is not None:
        raise errors.UserError(
          f'--job_log_dir={job_log_dir} has checkpoints already; expected a new'
          ' folder'
        )
      prefix = start.checkpoint.prefix
      staging = Staging(folder / STAGING, f'{prefix} {_stamp(prefix)}')
      state = start.state(task_program, batch, keep=staging.get)
      with staging.sparing():
        saver.save(start.step, state, {})
        saver.wait()
    staging.remove()
  print_line(f'{job_log_dir} continues from {start}')


def to_lingvo(
  experiment: LingvoExperiment,
  job_log_dir: str | os.PathLike,
  folder: str | os.PathLike,
  print_line: Callable[[str], None],
) -> str:
  """Converts the newest checkpoint of a run to a Lingvo checkpoint.

  After an interruption the same call resumes with the next array.

  Args:
    experiment: that the run trains. The checkpoint of its `start()`, if any,
      supplies what the run does not have, such as padding rows of tables.
    job_log_dir: the folder of the run.
    folder: to write to, such as `/new/run/train`.
    print_line: prints a line for the user.

  Returns:
    The prefix of its files.

  Raises:
    UserError: the run has no checkpoint, or the experiment's checkpoints are
      not supported.
  """
  with _restored(experiment, job_log_dir) as state:
    start = experiment.start()
    is_lingvos = isinstance(start, run_start.Start)
    original = start.checkpoint if is_lingvos else None
    prefix = exporting.write(
      state, experiment.checkpoint_metadata, folder, original
    )
  print_line(f'wrote {prefix}')
  return prefix


def verify(
  experiment: LingvoExperiment,
  job_log_dir: str | os.PathLike,
  checkpoint: files.TensorflowCheckpoint,
  print_line: Callable[[str], None],
):
  """Compares the newest checkpoint of a run with Lingvo's, bit by bit.

  Raises:
    UserError: they differ; the message lists every array that does.
  """
  metadata = experiment.checkpoint_metadata
  with _restored(experiment, job_log_dir) as state:
    arrays = checkpoints.state_paths(state)
    found = mapping.plan(state, metadata, checkpoint.shapes)
    differing = [
      leaf.path
      for leaf in found.leaves
      if not are_equal(
        importing.read_leaf(checkpoint, leaf),
        np.asarray(jax.device_get(arrays[leaf.path])),
      )
    ]
    counts = importing.read_counts(checkpoint, found)
    differing += [p for p, c in counts.items() if np.any(arrays[p] != c)]
  differing += [f'{path} (missing there)' for path in found.missing]
  if differing:
    raise errors.UserError(
      f'{job_log_dir} does not equal {checkpoint.prefix}; these differ:\n  '
      + '\n  '.join(differing)
    )
  print_line(
    f'all {len(found.leaves)} arrays equal those of {checkpoint.prefix}, bit by'
    ' bit'
  )


@contextlib.contextmanager
def program_of(
  experiment: LingvoExperiment,
) -> Iterator[tuple[program.TaskProgram, NestedMap]]:
  """Yields an experiment's program and a batch."""
  task = experiment.task().Instantiate()
  mesh = partitioning.mesh_of_task(task)
  with dataset_inputs.Inputs(experiment.train_datasets()) as data:
    batch = host_fields.for_devices(
      data.train.get_next(), data.train.is_host_field
    )
    yield program.create(task, mesh, batch), batch


@contextlib.contextmanager
def _opened(
  folder: pathlib.Path, **options: Any
) -> Iterator[checkpoints.Checkpointer]:
  saver = checkpoints.Checkpointer(
    folder / _CHECKPOINTS, max_to_keep=None, **options
  )
  with contextlib.closing(saver):
    yield saver


@contextlib.contextmanager
def _restored(experiment, job_log_dir) -> Iterator[program.TrainState]:
  """Yields the state of the newest checkpoint of a run."""
  folder = job_dir.local_path(job_log_dir)
  if not (folder / _CHECKPOINTS).is_dir():
    raise errors.UserError(
      f'--job_log_dir={job_log_dir} has no checkpoints; expected the folder of'
      ' a run'
    )
  with program_of(experiment) as (task_program, _), _opened(folder) as saver:
    step = saver.latest_step()
    if step is None:
      raise errors.UserError(f'--job_log_dir={job_log_dir} has no checkpoint')
    yield saver.restore(step, task_program.abstract_state)[0]


def is_converted(job_log_dir: str | os.PathLike) -> bool:
  """Whether a folder has checkpoints, and no import into it is unfinished."""
  folder = pathlib.Path(job_log_dir)
  return (folder / _CHECKPOINTS).is_dir() and not (folder / STAGING).is_dir()


def are_equal(lingvos: np.ndarray, ours: np.ndarray) -> bool:
  """Whether an array of Lingvo's equals ours bit by bit.

  JAX has no 64-bit types, so those are equal if their values are.
  """
  narrow = lingvos.astype(ours.dtype, copy=False)
  if narrow.tobytes() != ours.tobytes():
    return False
  is_float = np.issubdtype(ours.dtype, np.floating)
  return narrow is lingvos or np.array_equal(
    narrow, lingvos, equal_nan=is_float
  )


def _stamp(prefix: str) -> str:
  """Returns a string that changes when a checkpoint is rewritten."""
  stat = pathlib.Path(f'{prefix}.index').stat()
  return f'{stat.st_size} {stat.st_mtime_ns}'
