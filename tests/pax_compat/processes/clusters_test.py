"""Tests of the detection of clusters, by their environment variables."""

import re

import pytest

from pax_compat import errors
from pax_compat.processes import clusters
from tests.pax_compat import launching, trainer_runs

SLURM = {
  'SLURM_JOB_ID': '7',
  'SLURM_STEP_NODELIST': 'localhost',
  'SLURM_NTASKS': '2',
  'SLURM_PROCID': '0',
  'SLURM_LOCALID': '0',
}
OPEN_MPI = {
  'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://127.0.0.1:34911',
  'OMPI_COMM_WORLD_SIZE': '3',
  'OMPI_COMM_WORLD_RANK': '0',
  'OMPI_COMM_WORLD_LOCAL_RANK': '0',
}


@pytest.mark.parametrize(
  ('variables', 'expected'),
  [
    ({}, None),
    (SLURM, clusters.Cluster('slurm', 2, 'localhost:61447', 0)),
    (
      OPEN_MPI | {'OMPI_COMM_WORLD_RANK': '2'},
      clusters.Cluster('ompi', 3, '127.0.0.1:62624', 2),
    ),
    (
      SLURM | {'JAX_COORDINATOR_PORT': '12'},
      clusters.Cluster('slurm', 2, 'localhost:12', 0),
    ),
    (SLURM | {'SLURM_NTASKS': '1'}, None),
    # A shell within an allocation, outside of a step.
    ({'SLURM_JOB_ID': '7', 'SLURM_NTASKS': '2'}, None),
    # A notebook in a pod.
    ({'KUBERNETES_SERVICE_HOST': '10.0.0.1'}, None),
  ],
)
def test_detection(monkeypatch, variables, expected):
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  assert clusters.detect() == expected


@pytest.mark.parametrize(
  ('variables', 'message'),
  [
    ({'OMPI_COMM_WORLD_SIZE': '4'}, 'Open MPI has started 4 processes'),
    (
      {'KUBERNETES_SERVICE_HOST': '10.0.0.1', 'JOB_COMPLETION_INDEX': '1'},
      "pip install 'jax[k8s]', or --server_addr",
    ),
    (OPEN_MPI | {'OMPI_COMM_WORLD_SIZE': 'x'}, 'which cannot be examined'),
  ],
)
def test_processes_that_jax_does_not_find_do_not_train_alone(
  monkeypatch, variables, message
):
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(errors.UserError, match=re.escape(message)):
    clusters.detect()


@pytest.mark.slow
@pytest.mark.parametrize('rank', ['0', '1'])
def test_a_job_with_too_few_processes_ends_soon(tmp_path, rank):
  with launching.free_port() as port:
    done = trainer_runs.main(
      *(f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={tmp_path / "run"}'),
      '--join_timeout_secs=1',
      **SLURM | {'SLURM_PROCID': rank},
      JAX_COORDINATOR_PORT=str(port),
    )
  trainer_runs.assert_mistake(
    done,
    'within 1 seconds (--join_timeout_secs)',
    f'the rank {1 - int(rank)} in slurm',
  )
  assert not (tmp_path / 'run').exists()
