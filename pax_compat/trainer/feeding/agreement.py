"""Whether all processes read the same: equally many batches, of equal shapes.

Each process finds out for itself when its data ends. One that had fewer batches
than another would leave it alone in the step that all make together, which then
waits for ever. So processes compare before each step.

Legend: P processes.
"""

import hashlib
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import base_input, errors
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap

_DIGEST_BYTES = 8


class Agreement:
  """Compares what processes read, batch by batch; costs nothing with one.

  All processes make the same calls. They all raise where they disagree.
  """

  def __init__(self, name: str):
    """Has compared nothing.

    Args:
      name: of the dataset.
    """
    self._name = name
    self._count = 0

  def check(self, shapes: str | None, order: bytes | None):
    """Compares the next batch.

    Args:
      shapes: of the batch; None where this process has no batch left.
      order: `BaseInput.order_digest` right after the batch; None where
        processes read different data.

    Raises:
      UserError: not all processes have a batch, or batches have other shapes,
        or processes read other examples or another order.
    """
    if jax.process_count() == 1:
      return
    mine = [shapes and 'there', shapes, order]
    parts = np.stack([_digest(part) for part in mine])
    there, shapes, order = np.moveaxis(
      multihost_utils.process_allgather(parts), 1, 0
    )  # Each [P, bytes].
    ended = ~there.any(axis=-1)
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

  def _raise(self, told: str):
    raise errors.UserError(
      f'the dataset {self._name!r} is not the same on all processes: {told};'
      ' expected the same examples in the same order everywhere. Perhaps files'
      ' differ between machines, or the order is drawn at random'
    )


class SharedRows:
  """Compares what processes feed whose devices hold the same rows.

  Where a mesh splits a model over processes they must read the same, which an
  input that shuffles at random does not. Without such a mesh it costs nothing.
  """

  def __init__(self, data: base_input.BaseInput):
    """Has seen no batch.

    Args:
      data: the input.
    """
    self._data = data
    self._are_shared = data.num_infeed_hosts < jax.process_count()
    self._read = hashlib.blake2b(digest_size=_DIGEST_BYTES)

  def noting(self, get_next: Callable[[], NestedMap]) -> NestedMap:
    """Returns the batch that `get_next` returns, and notes what is in it."""
    batch = get_next()
    if self._are_shared:
      for leaf in jax.tree.leaves(batch):
        self._read.update(host_fields.canonical_bytes(np.asarray(leaf)))
    return batch

  def digest(self) -> bytes:
    """Returns what tells all that was noted so far."""
    return self._read.digest()

  def check(self, digest: bytes):
    """Compares what was read up to some batch; all processes make the call.

    Args:
      digest: what `digest` returned after the batch.

    Raises:
      UserError: processes have other examples in the same rows.
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


def _digest(told: str | bytes | None) -> np.ndarray:
  """Returns a few bytes, zeros for what is not there."""
  if told is None:
    return np.zeros([_DIGEST_BYTES], np.uint8)
  told = told.encode() if isinstance(told, str) else told
  digest = hashlib.blake2b(told, digest_size=_DIGEST_BYTES).digest()
  return np.frombuffer(digest, np.uint8)


def _numbers(chosen: np.ndarray) -> str:
  return ', '.join(map(str, np.flatnonzero(chosen)))
