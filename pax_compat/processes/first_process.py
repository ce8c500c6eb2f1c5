"""What process 0 decides or does for all processes of a run.

All of them make the same calls, in the same order, from the main thread.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import errors

# What stands for no number, and for a failure.
_NONE, _FAILED = -1, -2


def value_of(value: int) -> int:
  """Returns the value that process 0 gave."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def result_of(fn: Callable[[], int | None], failure: str) -> int | None:
  """Runs a function on process 0 and returns its result, or fails, on all.

  Args:
    fn: returns a number from 0 on, or None.
    failure: what the other processes say where it raises.

  Raises:
    UserError: it raised, on process 0, which raises what it raised.
  """
  if jax.process_count() == 1:
    return fn()
  code, error = _NONE, None
  if jax.process_index() == 0:
    try:
      result = fn()
      code = _NONE if result is None else result
    except Exception as e:  # the others wait for an answer
      code, error = _FAILED, e
  code = value_of(code)
  if error is not None:
    raise error
  if code == _FAILED:
    raise errors.UserError(f'process 0 {failure}; its log says why')
  return None if code == _NONE else code
