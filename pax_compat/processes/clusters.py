"""Whether this process is one of several that a cluster has started.

JAX knows TPU pods, Slurm, Open MPI 4 and Kubernetes. A job of one process is
not a cluster: nothing is started for it. Several processes that JAX does not
detect are an error, as each of them would train alone, in the same folder.
"""

import dataclasses
import importlib.util
import os

from absl import logging
from jax._src import clusters  # JAX cannot be asked without starting.

from pax_compat import errors

# What JAX takes for Kubernetes, and what an indexed job of it has in addition.
_KUBERNETES = 'KUBERNETES_SERVICE_HOST'
_INDEXED_JOB = 'JOB_COMPLETION_INDEX'
# The number of processes, which JAX reads with the address of Open MPI 4 only.
_OPEN_MPI_SIZE = 'OMPI_COMM_WORLD_SIZE'
# JAX's names of clusters that start all processes of a job at once.
_START_TOGETHER = ('slurm', 'ompi')
_INSTEAD = (
  '--server_addr, --num_hosts and --host_idx, or --nomultiprocess to train in'
  ' this process alone'
)


@dataclasses.dataclass(frozen=True)
class Cluster:
  """A cluster.

  Attributes:
    name: JAX's name of its kind.
    num_processes: how many processes run the same command, at least 2.
    address: HOST:PORT at which JAX connects them; '' if they may start minutes
      apart, as those of pods do, so that JAX waits for them.
    index: of this process.
  """

  name: str
  num_processes: int
  address: str = ''
  index: int = 0


def detect() -> Cluster | None:
  """Returns the cluster of this process; None if it runs alone.

  Raises:
    UserError: there is a cluster that does not answer, or that JAX does not
      detect.
  """
  for kind in clusters.ClusterEnv._cluster_types:
    if kind.opt_in_only_method or _is_not_of_a_job(kind):
      continue
    name = kind.name or kind.__name__
    try:
      if not kind.is_env_present():
        continue
      count = int(kind.get_process_count())
      found = Cluster(name, count)
      if name in _START_TOGETHER:
        found = Cluster(name, count, _address(kind), int(kind.get_process_id()))
    except Exception as e:  # noqa: BLE001 (of the libraries of clusters)
      raise errors.UserError(
        f'this process seems to be one of a cluster ({name}), which cannot be'
        f' examined: {errors.one_line(e)}; expected {_INSTEAD}'
      ) from e
    if count > 1:
      return found
    logging.debug('%s runs one process', name)
    return None
  _check_undetected()
  return None


def _address(kind: type) -> str:
  """Returns HOST:PORT of process 0, as JAX finds it."""
  given = os.environ.get('JAX_COORDINATOR_ADDRESS')
  port = os.environ.get('JAX_COORDINATOR_PORT')
  return given or kind.get_coordinator_address(
    timeout_secs=None, override_coordinator_port=port
  )


def _check_undetected():
  """Raises a UserError if several processes were started, unknown to JAX."""
  count = os.environ.get(_OPEN_MPI_SIZE, '1')
  if count.isdigit() and int(count) > 1:
    raise errors.UserError(
      f'Open MPI has started {count} processes, but JAX only detects those of'
      f' version 4; expected {_INSTEAD}'
    )
  if _INDEXED_JOB in os.environ and not importlib.util.find_spec('kubernetes'):
    raise errors.UserError(
      'this pod is one of an indexed job of Kubernetes, for which JAX needs the'
      " package kubernetes; expected pip install 'jax[k8s]', or"
      f' {_INSTEAD}'
    )


def _is_not_of_a_job(kind: type) -> bool:
  """Whether `kind` is Kubernetes, which JAX would ask for a job in vain.

  A pod that is not of an indexed job may be a notebook.
  """
  if kind.__name__ != 'K8sCluster' or _KUBERNETES not in os.environ:
    return False
  is_installed = importlib.util.find_spec('kubernetes') is not None
  return _INDEXED_JOB not in os.environ or not is_installed
