"""Tests of the detection of clusters, by their environment variables."""

import pytest

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
