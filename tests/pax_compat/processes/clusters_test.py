"""Tests of the detection of clusters, by their environment variables."""

import re

import pytest

from pax_compat import errors
from pax_compat.processes import clusters

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
    (SLURM, clusters.Cluster('slurm', 2)),
    (OPEN_MPI, clusters.Cluster('ompi', 3)),
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
