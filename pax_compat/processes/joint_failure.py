"""Errors of one process that all processes raise together.

If one of several processes leaves a common loop by an error of its own, such as
one of its files or of what only process 0 does, the others wait for it in a
collective, and nothing more can be done together, such as saving. So it keeps
the error, goes on to the next point at which all processes meet, and there all
of them raise.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import errors

_Result = TypeVar('_Result')


class JointFailure:
  """The first error of this process, until all processes meet.

  With a single process errors are raised where they occur.
  """

  def __init__(self, work: str):
    """Starts without an error.

    Args:
      work: what the processes do together, such as 'the evaluation of dev', for
        the error of the processes that have none.
    """
    self._work = work
    self._error: BaseException | None = None

  @property
  def exists(self) -> bool:
    """Whether this process keeps an error."""
    return self._error is not None

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Keeps an error that ends the context, if there are several processes.

    Only for what has no collectives, or has them before anything that can fail
    in one process alone. Errors of collectives are raised.
    """
    try:
      yield
    except jax.errors.JaxRuntimeError:
      raise
    except (Exception, SystemExit) as e:
      if jax.process_count() == 1:
        raise
      self._error = self._error or e

  def check(self):
    """Raises if any process keeps an error. All processes call it together.

    Raises:
      Exception: that of this process.
      UserError: only other processes have an error; it names them.
    """
    if jax.process_count() > 1:
      self.raise_if(multihost_utils.process_allgather(np.bool_(self.exists)))

  def raise_if(self, failed: np.ndarray):
    """Raises if any process keeps an error.

    Args:
      failed: [P], bool, of each of P processes whether it `exists` there.

    Raises:
      Exception: see `check`.
    """
    if not failed.any():
      return
    if self._error is not None:
      error, self._error = self._error, None
      raise error
    numbers = ', '.join(map(str, np.flatnonzero(failed)))
    raise errors.UserError(
      f'{self._work} has failed in process {numbers}; see the log there'
    )


def together(fn: Callable[[], _Result], work: str) -> _Result:
  """Returns the result of a function; if it raises anywhere, all raise.

  All processes call it together.

  Args:
    fn: is called in each process; without collectives.
    work: see `JointFailure`.

  Raises:
    Exception: see `JointFailure.check`.
  """
  failure, result = JointFailure(work), None
  with failure.held():
    result = fn()
  failure.check()
  return result
