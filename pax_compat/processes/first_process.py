"""Values and results that process 0 broadcasts to all processes of a run.

All processes make the same calls in the same order, from the main thread.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import errors

# Codes for the result None and for an error.
_NONE, _FAILED = -1, -2


def value_of(value: int) -> int:
  """Returns the value of process 0."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def result_of(fn: Callable[[], int | None], failure: str) -> int | None:
  """Runs a function in process 0 and returns its result in all processes.

  Args:
    fn: returns an int >= 0, or None.
    failure: the error message of the other processes if `fn` raises.

  Raises:
    UserError: `fn` raised in process 0, which raises the original error.
  """
  if jax.process_count() == 1:
    return fn()
  code, error = _NONE, None
  if jax.process_index() == 0:
    try:
      result = fn()
      code = _NONE if result is None else result
    except Exception as e:  # the other processes wait for the result
      code, error = _FAILED, e
  code = value_of(code)
  if error is not None:
    raise error
  if code == _FAILED:
    raise errors.UserError(f'process 0 {failure}; see its log')
  return None if code == _NONE else code
