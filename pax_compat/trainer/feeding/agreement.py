"""Cross-host checks: whether all processes read equal data.

Each process reaches the end of its data by itself. If one has fewer batches
than another, the other one waits forever in a collective step. So processes
compare what they read before each step.

Legend: P processes.
"""

import collections
import hashlib
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from pax_compat import base_input, errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.processes import joint_failure

_DIGEST_BYTES = 8


class CrossHostCheck:
  """Compares the number, shapes and order of batches between processes.

  All processes make the same calls, and all raise if they differ. With a single
  process it does nothing.
  """

  def __init__(self, name: str):
    """Starts before the first batch.

    Args:
      name: of the dataset.
    """
    self._name = name
    self._count = 0

  def check(
    self,
    shapes: str | None,
    order: bytes | None,
    failure: joint_failure.JointFailure | None = None,
  ):
    """Compares the next batch.

    Args:
      shapes: of the batch; None if this process has no batch left.
      order: `BaseInput.order_digest` right after the batch; None if processes
        read different data.
      failure: of this process, if any, which all raise together.

    Raises:
      Exception: a process has failed.
      UserError: not all processes have a batch, or shapes, examples or their
        order differ between processes.
    """
    if jax.process_count() == 1:
      return
    local = [shapes and 'has a batch', shapes, order]
    failed = failure is not None and failure.exists
    local.append('has failed' if failed else None)
    digests = np.stack([_digest(value) for value in local])
    has_batch, shapes, order, failed = np.moveaxis(
      multihost_utils.process_allgather(digests), 1, 0
    )  # Each [P, bytes].
    if failure is not None:
      failure.raise_if(failed.any(axis=-1))
    ended = ~has_batch.any(axis=-1)
    if ended.any() and not ended.all():
      self._raise(
        f'after batch {self._count}, the last one on processes'
        f' {_numbers(ended)}, there are more on {_numbers(~ended)}'
      )
    for digests, what in (
      (shapes, 'another shape'),
      (order, 'other examples in it, or in what was read before it,'),
    ):
      differ = (digests != digests[0]).any(axis=-1)
      if differ.any():
        self._raise(
          f'batch {self._count + 1} has {what} on processes {_numbers(differ)}'
          ' than on process 0'
        )
    self._count += 1

  def _raise(self, difference: str):
    raise errors.UserError(
      f'the dataset {self._name!r} is not the same on all processes:'
      f' {difference}; expected the same examples in the same order'
      ' everywhere. Perhaps files differ between machines, or the order is'
      ' random'
    )


class ReplicaRowCheck:
  """Compares the rows of processes whose devices hold replicas of them.

  If a mesh splits a model over processes, these must read the same rows, which
  an input that shuffles at random does not. Without such a mesh it does
  nothing.
  """

  def __init__(self, data: base_input.BaseInput):
    """Starts before the first batch.

    Args:
      data: the input.
    """
    self._data = data
    self._are_shared = data.num_infeed_hosts < jax.process_count()
    self._read = hashlib.blake2b(digest_size=_DIGEST_BYTES)

  def record(self, batch: NestedMap):
    """Adds a batch to the digest."""
    if self._are_shared:
      _update(self._read, batch)

  def digest(self) -> bytes:
    """Returns the digest of all batches that were recorded so far."""
    return self._read.digest()

  def check(self, digest: bytes):
    """Compares digests; all processes make the call.

    Args:
      digest: what `digest` returned after a batch.

    Raises:
      UserError: replicas of the same rows have different examples.
    """
    if not self._are_shared:
      return
    data = self._data
    numbers, digests = multihost_utils.process_allgather(
      (np.int32(data.infeed_host_index), np.frombuffer(digest, np.uint8))
    )
    for number in range(data.num_infeed_hosts):
      of_host = digests[numbers == number]
      if (of_host != of_host[0]).any():
        raise errors.UserError(
          f'the dataset {data.name!r} is not the same on the processes'
          f' {_numbers(numbers == number)}, whose devices hold the same rows of'
          ' a batch, as the mesh splits the model over them; expected an input'
          ' whose order is not drawn at random, such as one with replay=True,'
          ' or a mesh that splits the batch over all processes'
        )


def warn_of_equal_batches(data: base_input.BaseInput, batch: NestedMap):
  """Logs a warning if hosts have the same first batch, so the same examples.

  All processes make the call. Batches of padding rows alone are left out.

  Args:
    data: the input.
    batch: the first batch of this process.
  """
  if data.num_infeed_hosts == 1:
    return
  digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
  _update(digest, batch)
  weights = batch.get(example_rows.WEIGHTS)
  numbers, digests, are_real = multihost_utils.process_allgather(
    (
      np.int32(data.infeed_host_index),
      np.frombuffer(digest.digest(), np.uint8),
      np.bool_(weights is None or np.any(weights)),
    )
  )
  found = {
    int(n): x.tobytes()
    for n, x, is_real in zip(numbers, digests, are_real, strict=True)
    if is_real
  }
  count = collections.Counter(found.values())
  equal = [str(n) for n in sorted(found) if count[found[n]] > 1]
  if equal:
    logging.warning(
      'the first batch of the dataset %r is the same on the hosts %s: expected'
      ' an input that reads other examples on each of its num_infeed_hosts,'
      ' by infeed_host_index; python -m pax_compat.tools.inspect_input shows'
      ' what hosts read',
      data.name,
      ', '.join(equal),
    )


def _update(digest: Any, batch: NestedMap):
  """Adds a batch to a digest of `hashlib`."""
  for leaf in jax.tree.leaves(batch):
    digest.update(host_fields.canonical_bytes(np.asarray(leaf)))


def _digest(value: str | bytes | None) -> np.ndarray:
  """Returns a digest [bytes], zeros for None."""
  if value is None:
    return np.zeros([_DIGEST_BYTES], np.uint8)
  value = value.encode() if isinstance(value, str) else value
  digest = hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
  return np.frombuffer(digest, np.uint8)


def _numbers(chosen: np.ndarray) -> str:
  return ', '.join(map(str, np.flatnonzero(chosen)))
