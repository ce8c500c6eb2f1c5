"""Tests of processes that start alike or not, in a cluster by environment."""

import contextlib

import pytest

from pax_compat.processes import same_start
from tests.pax_compat import launching, trainer_runs
from tests.pax_compat.processes.clusters_test import OPEN_MPI, SLURM


def _slurm(index: int) -> dict[str, str]:
  return SLURM | {'SLURM_PROCID': str(index), 'SLURM_LOCALID': str(index)}


def _open_mpi(index: int) -> dict[str, str]:
  return OPEN_MPI | {
    'OMPI_COMM_WORLD_SIZE': '2',
    'OMPI_COMM_WORLD_RANK': str(index),
    'OMPI_COMM_WORLD_LOCAL_RANK': str(index),
  }


@contextlib.contextmanager
def _two_processes(folder, output, cluster, *own_flags, settings=(None, None)):
  """Starts the same command twice, without a flag for several processes."""
  with contextlib.ExitStack() as stack:
    port = stack.enter_context(launching.free_port())
    steps = '--set=task.train.num_train_steps=3'
    yield [
      stack.enter_context(
        trainer_runs.start(
          trainer_runs.flags(folder, steps, *own),
          output=output / str(index),
          settings=settings[index],
          **cluster(index),
          JAX_COORDINATOR_PORT=str(port),
        )
      )
      for index, own in enumerate(own_flags)
    ]


@pytest.mark.parametrize(
  'cluster', [_slurm, pytest.param(_open_mpi, marks=pytest.mark.slow)]
)
def test_processes_of_a_cluster_train_together(tmp_path, cluster):
  folder = tmp_path / 'run'
  with _two_processes(folder, tmp_path, cluster, (), ()) as both:
    for run in both:
      assert run.end() == 0, run.stderr
  first, second = both
  assert '2 x cpu of 2 processes; mesh data 2' in first.stdout
  # Each of them reads half of it.
  assert 'global batch 8 rows of 8' in first.stdout
  assert 'step' not in second.stdout  # The first one prints the progress.
  assert trainer_runs.steps_saved(folder) == [3]


def test_a_flag_that_differs_is_named_and_nothing_is_trained(tmp_path):
  folder = tmp_path / 'run'
  own = '--set=task.train.random_seed=7', '--set=task.train.random_seed=8'
  flags = [(flag, '--enable_summary_writer=false') for flag in own]
  flags[1] = flags[1][:1]
  with _two_processes(folder, tmp_path, _slurm, *flags) as both:
    for run in both:
      assert run.end() == 2, run.stderr
  for run in both:
    trainer_runs.assert_mistake(
      run_of(run),
      'the processes of this run did not start alike',
      'flag --enable_summary_writer: False in process 0, not given in process',
      'flag --set: ',
    )
  assert not folder.exists()


@pytest.mark.slow
def test_code_that_differs_is_named_and_nothing_is_trained(tmp_path):
  folder, settings = (
    tmp_path / 'run',
    ({}, {'save_interval_steps': 6, 'dev': {'batch_size': 16}}),
  )
  with _two_processes(
    folder, tmp_path, _slurm, (), (), settings=settings
  ) as both:
    for run in both:
      assert run.end() == 2, run.stderr
  for run in both:
    trainer_runs.assert_mistake(
      run_of(run),
      'the processes of this run did not start alike',
      'config in process 0: task.train.save_interval_steps = 5',
      'config in process 1: task.train.save_interval_steps = 6',
      'config in process 0: datasets[1].batch_size = 8',
      'config in process 1: datasets[1].batch_size = 16',
    )
  assert not folder.exists()


def run_of(run):
  """Returns a run that has ended, as `assert_mistake` takes it."""
  run.returncode = run.process.returncode
  return run


def test_the_first_lines_of_configs_that_differ():
  texts = ['a = 1\nb = 2\nc = 3\n', 'a = 1\nb = 2\nc = 3\n', 'a = 1\nc = 4\n']
  assert same_start._different_lines(texts).splitlines() == [
    'config in process 0: b = 2',
    'config in process 0: c = 3',
    'config in process 2: c = 4',
  ]
