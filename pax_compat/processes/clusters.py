"""Whether this process is one of several that a cluster has started.

JAX knows TPU pods, Slurm, Open MPI 4 and Kubernetes. A job of one process is
not a cluster: nothing is started for it. Several processes that JAX does not
detect are an error, as each of them would train alone, in the same folder.
"""

import dataclasses
import importlib.util
import math
import os

from absl import logging
from jax._src import clusters  # JAX cannot be asked without starting.

from pax_compat import errors

# What JAX takes for Kubernetes, and what an indexed job of it has in addition.
_KUBERNETES = 'KUBERNETES_SERVICE_HOST'
_INDEXED_JOB = 'JOB_COMPLETION_INDEX'
# The number of processes, which JAX reads with the address of Open MPI 4 only.
_OPEN_MPI_SIZE = 'OMPI_COMM_WORLD_SIZE'
# How long processes wait for each other that a cluster starts at once, by JAX's
# names of such clusters, and those of pods, which may start minutes apart.
_START_TOGETHER = ('slurm', 'ompi')
_SECONDS_TOGETHER, _SECONDS_OF_PODS = 60.0, 600.0
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
    address: HOST:PORT of process 0, at which they meet.
    index: of this process.
    seconds: how long they wait for each other, unless a flag says so.
    machines: of each process, by its index; () if they are not known.
  """

  name: str
  num_processes: int
  address: str
  index: int
  seconds: float = _SECONDS_TOGETHER
  machines: tuple[str, ...] = ()


def detect(seconds: float | None = None) -> Cluster | None:
  """Returns the cluster of this process; None if it runs alone.

  Args:
    seconds: how long processes wait for each other; by default as long as those
      of such a cluster need.

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
      if count == 1:
        logging.debug('%s runs one process', name)
        return None
      return _found(kind, name, count, seconds)
    except Exception as e:  # noqa: BLE001 (of the libraries of clusters)
      raise errors.UserError(
        f'this process seems to be one of a cluster ({name}), which cannot be'
        f' examined: {errors.one_line(e)}; expected {_INSTEAD}'
      ) from e
  _check_undetected()
  return None


def _found(kind: type, name: str, count: int, seconds: float | None) -> Cluster:
  """Returns a cluster of several processes."""
  together = name in _START_TOGETHER
  seconds = seconds or (_SECONDS_TOGETHER if together else _SECONDS_OF_PODS)
  address = os.environ.get('JAX_COORDINATOR_ADDRESS')
  if not address:
    # Where JAX can do without, the name of the machine of process 0 is looked
    # up when the processes meet, by whose limit it may appear.
    waits = not together and not _is_kubernetes(kind)
    address = kind.get_coordinator_address(
      timeout_secs=math.ceil(seconds) if waits else None,
      override_coordinator_port=os.environ.get('JAX_COORDINATOR_PORT'),
    )
  index = int(kind.get_process_id())
  machines = _machines(kind, count)
  return Cluster(name, count, address, index, seconds, machines)


def _machines(kind: type, count: int) -> tuple[str, ...]:
  """Returns the machines or pods of all processes, if they are known."""
  if _is_kubernetes(kind):
    job = kind._job().metadata.name
    return tuple(f'{job}-{index}' for index in range(count))
  # Of several slices of TPUs, a process knows the machines of its own.
  listed = getattr(kind, '_get_worker_list_in_slice', tuple)()
  return tuple(listed) if len(listed) == count else ()


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


def _is_kubernetes(kind: type) -> bool:
  return kind.__name__ == 'K8sCluster'


def _is_not_of_a_job(kind: type) -> bool:
  """Whether `kind` is Kubernetes, which JAX would ask for a job in vain.

  A pod that is not of an indexed job may be a notebook.
  """
  if not _is_kubernetes(kind) or _KUBERNETES not in os.environ:
    return False
  is_installed = importlib.util.find_spec('kubernetes') is not None
  return _INDEXED_JOB not in os.environ or not is_installed
