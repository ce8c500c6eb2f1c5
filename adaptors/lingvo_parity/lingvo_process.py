"""A process for Lingvo's side: if TensorFlow ends it, the comparison goes on.

Some of Lingvo's graphs end the process with today's TensorFlow: they corrupt
the heap, or fail a check in C++.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from absl import logging

from pax_compat import errors

# oneDNN corrupts the heap in graphs with LSTMs.
_SETTINGS = {'TF_ENABLE_ONEDNN_OPTS': '0'}


class LingvoFailedError(errors.UserError):
  """Lingvo itself cannot run the task, so there is nothing to compare."""


class LingvoProcess:
  """A process that waits until it is asked for a result.

  Use it as a context; at its end the process ends.
  """

  def __init__(self, compute: Callable[..., Any]):
    """Forks the process. Nothing of TensorFlow may have run yet.

    Args:
      compute: called in the process; returns something that can be pickled.
    """
    os.environ.update({k: os.environ.get(k, v) for k, v in _SETTINGS.items()})
    sys.stdout.flush()
    context = multiprocessing.get_context('fork')
    self._connection, other = context.Pipe()
    self._process = context.Process(
      target=_serve, args=(compute, other), daemon=True
    )
    self._process.start()
    other.close()

  def __enter__(self) -> 'LingvoProcess':
    return self

  def __exit__(self, *unused: Any):
    self._connection.close()
    if self._process.is_alive():
      self._process.kill()
    self._process.join()

  def begin(self, *arguments: Any):
    """Lets the process call `compute`."""
    self._connection.send(arguments)

  def result(self) -> Any:
    """Returns the result, once it is there.

    Raises:
      UserError: the process raised one.
      LingvoFailedError: it raised another error, or was ended.
    """
    try:
      kind, value = self._connection.recv()
    except EOFError:
      self._process.join()
      raise LingvoFailedError(
        f'Lingvo ended its process with {_described(self._process.exitcode)},'
        ' without a result to compare with; the lines above are from'
        ' TensorFlow. The translation was not run'
      ) from None
    if kind is not None:
      raise kind(value)
    return value


def _serve(compute: Callable[..., Any], connection: Any):
  """Sends what `compute` returns, or its error, as (class, message)."""
  try:
    arguments = connection.recv()
  except EOFError:
    return
  try:
    result = None, compute(*arguments)
  except errors.UserError as error:
    result = errors.UserError, str(error)
  except Exception as error:  # Of Lingvo, TensorFlow or the user's code.
    logging.vlog(1, '%s', ''.join(traceback.format_exception(error)))
    result = (
      LingvoFailedError,
      'Lingvo itself cannot run this task:'
      f' {errors.with_location(error, brief=True)};'
      ' --verbosity=1 prints the traceback',
    )
  connection.send(result)


def _described(status: int) -> str:
  """Returns what an exit status means."""
  if status >= 0:
    return f'the status {status}'
  return f'the signal {signal.Signals(-status).name}'
