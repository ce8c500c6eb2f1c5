"""Flags for training with several processes."""

from collections.abc import Callable
from typing import Any

from absl import flags, logging

from pax_compat import errors

_MULTIPROCESS = flags.DEFINE_bool(
  'multiprocess',
  None,
  'Train with all processes of the cluster; run the same command in each. By'
  ' default so on TPU pods and in jobs of several processes of Slurm, Open MPI'
  ' and Kubernetes, which JAX detects. True is an error without a cluster, and'
  ' False trains in this process alone.',
)
flags.DEFINE_alias('multiprocess_gpu', 'multiprocess')
_ADDRESS = flags.DEFINE_string(
  'server_addr',
  None,
  'HOST:PORT of process 0, if JAX cannot detect the cluster. Requires'
  ' --num_hosts and --host_idx.',
)
_COUNT = flags.DEFINE_integer(
  'num_hosts', None, 'Number of processes.', lower_bound=1
)
_INDEX = flags.DEFINE_integer(
  'host_idx', None, 'Index of this process, from 0 on.', lower_bound=0
)
_SECONDS = flags.DEFINE_float(
  'join_timeout_secs',
  None,
  'How long processes wait for each other when they start. The default is 60,'
  ' and 600 in TPU pods and in Kubernetes, whose processes may start minutes'
  ' apart.',
  lower_bound=1,
)
_SECONDS_TOGETHER = 60.0
# A process of which nothing is heard for so long is gone. Connections notice
# that sooner, but for machines that are cut off.
_HEARTBEAT_SECONDS = 50
_SHUTDOWN_SECONDS = 60
# Flags that may differ between processes.
_OWN = (
  'compilation_cache_dir',
  'join_timeout_secs',
  'host_idx',
  'jax_profiler_port',
  'server_addr',
)
# Modules of flags that do not change a run, such as the verbosity.
_LOGGING = ('absl.',)


def check():
  """Raises a UserError if the flags contradict each other."""
  manual = (_ADDRESS, _COUNT, _INDEX)
  missing = [f'--{flag.name}' for flag in manual if flag.value is None]
  if 0 < len(missing) < len(manual):
    are = 'is' if len(missing) == 1 else 'are'
    raise errors.UserError(
      f'{" and ".join(missing)} {are} missing; expected all three of'
      ' --server_addr, --num_hosts and --host_idx, or --multiprocess if JAX can'
      ' detect the cluster'
    )
  if not missing and _INDEX.value >= _COUNT.value:
    raise errors.UserError(
      f'--host_idx is {_INDEX.value}; expected one of --num_hosts='
      f'{_COUNT.value} processes, from 0 to {_COUNT.value - 1}'
    )


def join(detect: Callable[[float | None], Any], meet: Callable[..., None]):
  """Connects to the other processes, if there is a cluster of several.

  Call `check` before, and do not use JAX before. It waits until all processes
  are connected.

  Args:
    detect: (how long to wait, if given) -> the cluster of this process; None if
      it runs alone. See `processes.clusters`, which imports JAX.
    meet: waits for the processes at an address; see `processes.rendezvous`.

  Raises:
    UserError: JAX cannot detect the cluster or connect to the processes.
  """
  import jax  # Imported late: it takes a second.

  if jax.distributed.is_initialized():
    return
  limits: dict[str, int] = dict(
    heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
    shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
  )
  given = _SECONDS.value
  if _ADDRESS.value is not None:
    seconds = given or _SECONDS_TOGETHER
    place = dict(count=_COUNT.value, index=_INDEX.value)
    meet(_ADDRESS.value, **place, flag_values=common_flags(), seconds=seconds)
    limits['initialization_timeout'] = int(seconds)
  elif found := _cluster(detect):
    meet(
      found.address,
      count=found.num_processes,
      index=found.index,
      flag_values=common_flags(),
      seconds=found.seconds,
      cluster=found.name,
      machines=found.machines,
    )
    limits['initialization_timeout'] = int(found.seconds)
  elif not _MULTIPROCESS.value:
    return
  try:
    jax.distributed.initialize(
      _ADDRESS.value, _COUNT.value, _INDEX.value, **limits
    )
  except (ValueError, RuntimeError) as e:
    raise errors.UserError(
      f'cannot join the other processes: {errors.one_line(e)}'
    ) from e
  logging.info(
    'process %d of %d, with %d of %d devices',
    jax.process_index(),
    jax.process_count(),
    jax.local_device_count(),
    jax.device_count(),
  )


def _cluster(detect: Callable[[float | None], Any]) -> Any:
  """Returns the cluster of several processes; None if there is none."""
  if _MULTIPROCESS.value is False:
    return None
  found = detect(_SECONDS.value)
  if found is not None:
    logging.info(
      '%s runs %d processes, which train together (--nomultiprocess: this one'
      ' alone)',
      found.name,
      found.num_processes,
    )
  return found


def common_flags() -> dict[str, str]:
  """Returns the given flags that all processes must have in common."""
  found = {}
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if module.startswith(_LOGGING):
      continue
    for flag in defined:
      if flag.name not in _OWN and flag.value != flag.default:
        found[flag.name] = str(flag.value)
  return found
