"""Time, logs, threads, file patterns and the origin of examples."""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import logging

from pax_compat import errors

# Keys of batches: where SeqIO read an example.
PROVENANCE_PREFIX = '_seqio_provenance'
INDEX_WITHIN_SHARD_KEY = f'{PROVENANCE_PREFIX}/index_within_shard'
SHARD_INDEX_KEY = f'{PROVENANCE_PREFIX}/shard_index'
NUM_SHARDS_KEY = f'{PROVENANCE_PREFIX}/num_shards'
ENUM_PROVENANCE_KEYS = (INDEX_WITHIN_SHARD_KEY, SHARD_INDEX_KEY, NUM_SHARDS_KEY)


class ThreadLocalStack(threading.local):
  """A list `stack` that each thread has for itself."""

  def __init__(self):
    super().__init__()
    self.stack: list[Any] = []


@dataclasses.dataclass
class RunningPeriod:
  """A period of time, in seconds since the epoch.

  Attributes:
    start: its start.
    end: its end; None while it lasts.
    min_elapsed: lower bound of `elapsed`, in seconds.
  """

  start: float
  end: float | None = None
  min_elapsed: float = 0

  @property
  def elapsed(self) -> float:
    """Its length so far, in seconds."""
    end = time.time() if self.end is None else self.end
    return max(end - self.start, self.min_elapsed)


@contextlib.contextmanager
def timeit(min_elapsed: float = 1e-6) -> Iterator[RunningPeriod]:
  """Context manager that measures the time spent in it.

  >>> with timeit() as period:
  ...   _ = sum(range(10))
  >>> period.elapsed > 0
  True
  """
  period = RunningPeriod(start=time.time(), min_elapsed=min_elapsed)
  try:
    yield period
  finally:
    period.end = time.time()


def benchmark(prefix: str = '', first_n: int | None = None):
  """Returns a decorator that logs how long each call takes.

  Args:
    prefix: begins each log line.
    first_n: only that many calls are logged; None for all.
  """

  def decorate(function: Callable[..., Any]):
    calls = 0

    @functools.wraps(function)
    def timed(*args, **kwargs):
      nonlocal calls
      calls += 1
      if first_n is not None and calls > first_n:
        return function(*args, **kwargs)
      with timeit() as period:
        result = function(*args, **kwargs)
      logging.info(
        '%s%s took %.2f seconds', prefix, function.__name__, period.elapsed
      )
      return result

    return timed

  return decorate


@contextlib.contextmanager
def logging_verbosity_level(level: str | int) -> Iterator[None]:
  """Context manager in which absl logs only what is at least `level`."""
  before = logging.get_verbosity()
  logging.set_verbosity(level)
  try:
    yield
  finally:
    logging.set_verbosity(before)


def sharded_file_pattern_to_glob(file_pattern: str) -> str:
  """Returns `path@5` as `path-?????-of-00005`, and `path@*` likewise.

  Raises:
    UserError: there are several patterns.
  """
  if ',' in file_pattern:
    raise errors.UserError(
      f'{file_pattern!r} has several patterns; expected one'
    )
  if '@' not in file_pattern:
    return file_pattern
  path, shards = file_pattern.split('@')
  count = shards if shards == '*' else f'{int(shards):05}'
  return f'{path}-?????-of-{count}'


def get_enumeration_id(
  example: dict[str, Any], pop: bool = False
) -> str | None:
  """Returns a text that names an example within its data set.

  Args:
    example: a mapping with the keys `ENUM_PROVENANCE_KEYS`.
    pop: whether those keys are removed from it.

  Returns:
    `key=value/key=value/key=value`; None if a key is not there.
  """
  if not all(key in example for key in ENUM_PROVENANCE_KEYS):
    return None
  read = example.pop if pop else example.get
  return '/'.join(
    f'{key}={int(np.asarray(read(key)).item())}' for key in ENUM_PROVENANCE_KEYS
  )
