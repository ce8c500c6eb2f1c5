"""Tests of the detection of clusters, by their environment variables."""

import functools
import re
import types
from concurrent import futures

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
# Google's Kubernetes, with what JAX would ask the metadata service for. JAX
# reads the first one while it is imported.
TPU = {
  'JAX_FORCE_TPU_INIT': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost,127.0.0.1',
  'TPU_WORKER_ID': '0',
  'MEGASCALE_COORDINATOR_ADDRESS': 'localhost',
  'MEGASCALE_NUM_SLICES': '1',
  'MEGASCALE_SLICE_ID': '0',
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


def test_a_tpu_pod_waits_for_pods_that_start_late(monkeypatch):
  kind = _kind('GkeTpuCluster', monkeypatch)
  monkeypatch.setattr(kind, 'is_env_present', lambda: True)
  for name, value in TPU.items():
    monkeypatch.setenv(name, value)
  expected = functools.partial(
    clusters.Cluster,
    *('gketpu', 2, 'localhost:8482', 0),
    machines=('localhost', '127.0.0.1'),
  )
  assert clusters.detect() == expected(seconds=600)
  assert clusters.detect(7) == expected(seconds=7)
  # A process knows the machines of its own slice only.
  monkeypatch.setenv('MEGASCALE_NUM_SLICES', '2')
  monkeypatch.setenv('MEGASCALE_SLICE_ID', '1')
  assert clusters.detect() == clusters.Cluster(
    'gketpu', 4, 'localhost:8482', 2, seconds=600
  )


def test_an_indexed_job_of_kubernetes_names_its_pods(monkeypatch):
  """What its service would answer; no service is needed."""
  kind = _kind('K8sCluster', monkeypatch)
  spec = types.SimpleNamespace
  job = spec(metadata=spec(name='lm', labels={}), spec=spec(parallelism=2))
  pod = spec(spec=spec(subdomain='jaxpods'))
  answers = dict(
    is_env_present=True, _job=job, _pod=pod, _controller=spec(kind='Job')
  )
  for name, answer in answers.items():
    monkeypatch.setattr(kind, name, lambda answer=answer: answer)
  monkeypatch.setattr(clusters, '_is_not_of_a_job', lambda kind: False)
  monkeypatch.setenv('JOB_COMPLETION_INDEX', '1')
  assert clusters.detect() == clusters.Cluster(
    kind.__name__,
    *(2, 'lm-0.jaxpods:55527', 1),
    seconds=600,
    machines=('lm-0', 'lm-1'),
  )


def _kind(name: str, monkeypatch) -> type:
  """Returns JAX's cluster of a name, the only one that it looks for then."""
  known = clusters.clusters.ClusterEnv
  [kind] = [k for k in known._cluster_types if k.__name__ == name]
  monkeypatch.setattr(known, '_cluster_types', [kind])
  return kind


@pytest.mark.slow
def test_processes_of_a_tpu_pod_train_together(tmp_path):
  folder = tmp_path / 'run'
  with launching.free_port() as port, futures.ThreadPoolExecutor() as pool:
    both = [
      pool.submit(
        trainer_runs.python,
        *trainer_runs.flags(folder, '--set=task.train.num_train_steps=3'),
        **TPU | {'TPU_WORKER_ID': index, 'JAX_COORDINATOR_PORT': str(port)},
      )
      for index in '01'
    ]
    first, second = (run.result() for run in both)
  assert first.returncode == 0, first.stderr
  assert second.returncode == 0, second.stderr
  assert '2 x cpu of 2 processes; mesh data 2' in first.stdout
  assert trainer_runs.steps_saved(folder) == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('variables', 'missing'),
  [
    (SLURM, 'the rank 1 in slurm'),
    (SLURM | {'SLURM_PROCID': '1'}, 'the rank 0 in slurm'),
    (TPU, 'the rank 1 in gketpu (127.0.0.1)'),
    (TPU | {'TPU_WORKER_ID': '1'}, 'the rank 0 in gketpu (localhost)'),
  ],
)
def test_a_job_with_too_few_processes_ends_soon(tmp_path, variables, missing):
  with launching.free_port() as port:
    done = trainer_runs.main(
      *(f'--exp={trainer_runs.COUNTING}', f'--job_log_dir={tmp_path / "run"}'),
      '--join_timeout_secs=1',
      **variables,
      JAX_COORDINATOR_PORT=str(port),
    )
  trainer_runs.assert_mistake(
    done, 'within 1 seconds (--join_timeout_secs)', missing
  )
  assert not (tmp_path / 'run').exists()
