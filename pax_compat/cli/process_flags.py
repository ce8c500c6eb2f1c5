"""Flags that make this process one of several that train together."""

from absl import flags, logging

from pax_compat import errors

_MULTIPROCESS = flags.DEFINE_bool(
  'multiprocess',
  False,
  'Train together with the other processes of the cluster, which JAX finds by'
  ' itself on TPU pods, and under Slurm, Open MPI and Kubernetes. Each of them'
  ' has the same command.',
)
flags.DEFINE_alias('multiprocess_gpu', 'multiprocess')
_ADDRESS = flags.DEFINE_string(
  'server_addr',
  None,
  'HOST:PORT at which the first of the processes is to be reached, where JAX'
  ' does not find it by itself; with --num_hosts and --host_idx.',
)
_COUNT = flags.DEFINE_integer(
  'num_hosts', None, 'How many processes train together.', lower_bound=1
)
_INDEX = flags.DEFINE_integer(
  'host_idx', None, 'Which of them this one is, from 0 on.', lower_bound=0
)


def check():
  """Checks that the flags go together.

  Raises:
    UserError: they do not.
  """
  told = (_ADDRESS, _COUNT, _INDEX)
  missing = [f'--{flag.name}' for flag in told if flag.value is None]
  if 0 < len(missing) < len(told):
    raise errors.UserError(
      f'{" and ".join(missing)} is missing; expected all three of'
      ' --server_addr, --num_hosts and --host_idx, or --multiprocess where JAX'
      ' finds them by itself'
    )
  if not missing and _INDEX.value >= _COUNT.value:
    raise errors.UserError(
      f'--host_idx is {_INDEX.value}; expected one of --num_hosts='
      f'{_COUNT.value} processes, from 0 to {_COUNT.value - 1}'
    )


def join():
  """Finds the other processes, if there are any; `check` comes before.

  It waits until all of them are there. JAX must not have computed anything.

  Raises:
    UserError: JAX finds no cluster, or not the others.
  """
  if not _MULTIPROCESS.value and _ADDRESS.value is None:
    return
  import jax  # It takes a second, which no mistake should cost.

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
