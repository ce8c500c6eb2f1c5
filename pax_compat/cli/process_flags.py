"""Flags for training with several processes."""

from absl import flags, logging

from pax_compat import errors

_MULTIPROCESS = flags.DEFINE_bool(
  'multiprocess',
  False,
  'Train with all processes of the cluster. JAX detects TPU pods, Slurm, Open'
  ' MPI and Kubernetes. Run the same command in each process.',
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


def check():
  """Raises a UserError if the flags contradict each other."""
  manual = (_ADDRESS, _COUNT, _INDEX)
  missing = [f'--{flag.name}' for flag in manual if flag.value is None]
  if 0 < len(missing) < len(manual):
    raise errors.UserError(
      f'{" and ".join(missing)} is missing; expected all three of'
      ' --server_addr, --num_hosts and --host_idx, or --multiprocess if JAX can'
      ' detect the cluster'
    )
  if not missing and _INDEX.value >= _COUNT.value:
    raise errors.UserError(
      f'--host_idx is {_INDEX.value}; expected one of --num_hosts='
      f'{_COUNT.value} processes, from 0 to {_COUNT.value - 1}'
    )


def join():
  """Connects to the other processes, if the flags request it.

  Call `check` before, and do not use JAX before. It waits until all processes
  are connected.

  Raises:
    UserError: JAX cannot detect the cluster or connect to the processes.
  """
  if not _MULTIPROCESS.value and _ADDRESS.value is None:
    return
  import jax  # Imported late: it takes a second.

  try:
    jax.distributed.initialize(_ADDRESS.value, _COUNT.value, _INDEX.value)
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
