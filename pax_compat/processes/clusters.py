"""Whether this process is one of several that a cluster has started.

JAX knows TPU pods, Slurm, Open MPI and Kubernetes. A job of one process is not
a cluster: nothing is started for it.
"""

import dataclasses
import os

from absl import logging
from jax._src import clusters  # JAX cannot be asked without starting.

from pax_compat import errors

# What JAX takes for Kubernetes, and what an indexed job of it has in addition.
_KUBERNETES = 'KUBERNETES_SERVICE_HOST'
_INDEXED_JOB = 'JOB_COMPLETION_INDEX'


@dataclasses.dataclass(frozen=True)
class Cluster:
  """A cluster.

  Attributes:
    name: JAX's name of its kind.
    num_processes: how many processes run the same command, at least 2.
  """

  name: str
  num_processes: int


def detect() -> Cluster | None:
  """Returns the cluster of this process; None if it runs alone.

  Raises:
    UserError: there is a cluster, which does not answer.
  """
  for kind in clusters.ClusterEnv._cluster_types:
    if kind.opt_in_only_method or _is_lone_pod(kind):
      continue
    name = kind.name or kind.__name__
    try:
      if not kind.is_env_present():
        continue
      count = int(kind.get_process_count())
    except Exception as e:  # noqa: BLE001 (of the libraries of clusters)
      raise errors.UserError(
        f'this process seems to be one of a cluster ({name}), which cannot be'
        f' examined: {errors.one_line(e)}; expected --server_addr, --num_hosts'
        ' and --host_idx, or --nomultiprocess to train in this process alone'
      ) from e
    if count > 1:
      return Cluster(name, count)
    logging.debug('%s runs one process', name)
    return None
  return None


def _is_lone_pod(kind: type) -> bool:
  """Whether `kind` is Kubernetes, and this pod is not of an indexed job.

  Such a pod may be a notebook, whose job JAX would look for in vain.
  """
  return (
    kind.__name__ == 'K8sCluster'
    and _KUBERNETES in os.environ
    and _INDEXED_JOB not in os.environ
  )
