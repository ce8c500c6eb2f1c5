"""Gathers the rows of a batch from all processes, for the first of them.

Shapes: B batch of all processes together, P processes.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.processes import joint_failure
from pax_compat.trainer import partitioning
from pax_compat.trainer.feeding.pipeline import DeviceBatch

# Lengths are rounded up to powers of two, at least this one, because each new
# length is compiled.
_LEAST_BYTES = 1024


class Examples(NamedTuple):
  """The rows of a batch, without the model's outputs.

  Attributes:
    host: the fields that stayed on the host, by path, [B, ...]; empty except on
      the first process.
    counts: [B], bool, which rows have a weight.
  """

  host: dict[str, np.ndarray]
  counts: np.ndarray


def examples(
  batch: DeviceBatch, sharding: partitioning.BatchSharding
) -> Examples:
  """Returns the rows of a batch of all processes, each once.

  All processes call it at the same time.

  Args:
    batch: this process's batch.
    sharding: how batches are split.

  Raises:
    UserError: a field that stays on the host does not have B rows.
  """
  rows = example_rows.num_rows(batch.arrays)
  weights = example_weights(batch.arrays)
  counts = np.ones(rows, bool) if weights is None else whole(weights) != 0
  return Examples(_host_fields(batch.host, rows, sharding), counts)


def whole(tree: Any) -> Any:
  """Returns arrays that are split over all processes' devices, as numpy arrays.

  All processes call it at the same time.
  """
  return multihost_utils.process_allgather(tree, tiled=True)


def example_weights(batch: NestedMap) -> jax.Array | None:
  """Returns the rows' weights [B]; None if the batch has none."""
  inner = [x for x in batch.values() if isinstance(x, NestedMap)]
  for fields in (batch, *inner):
    if example_rows.WEIGHTS in fields:
      return fields[example_rows.WEIGHTS]
  return None


def _host_fields(host, rows: int, sharding) -> dict[str, np.ndarray]:
  if not host:
    return host
  several = jax.process_count() > 1

  def packed():
    checked = _with_all_rows(host, rows // sharding.num_infeed_hosts, sharding)
    return host_fields.to_bytes(checked) if several else checked

  found = joint_failure.together(packed, 'reading the fields on the host')
  if not several:
    return found
  data = np.frombuffer(found, np.uint8)
  local = np.array([data.size, sharding.infeed_host_index], np.int32)
  sizes, indices = multihost_utils.process_allgather(local).T  # Each [P].
  room = max(_LEAST_BYTES, 1 << (int(sizes.max()) - 1).bit_length())
  sent = np.zeros(room, np.uint8)
  sent[: data.size] = data
  received = multihost_utils.process_allgather(sent)  # [P, room]
  if jax.process_index():
    return {}
  by_host: dict[int, dict[str, np.ndarray]] = {}
  for data, size, index in zip(received, sizes, indices, strict=True):
    if int(index) not in by_host:  # Replicas read the same rows.
      by_host[int(index)] = host_fields.from_bytes(data[:size].tobytes())
  return _in_order([by_host[i] for i in sorted(by_host)], rows, sharding)


def _with_all_rows(host, own: int, sharding) -> dict[str, np.ndarray]:
  """Returns the host fields of this process, with padding rows."""
  host = {
    path: _with_padding_rows(x, own, sharding) for path, x in host.items()
  }
  for path, x in host.items():
    if x.shape[:1] != (own,):
      raise errors.UserError(
        f'the field {path!r} of a batch stays on the host, and has the shape'
        f' {list(x.shape)}; expected {own} rows, one for each example'
      )
  return host


def _with_padding_rows(x: np.ndarray, rows: int, sharding) -> np.ndarray:
  """Returns a host field with the padding rows that a batch got for devices."""
  added = rows - len(x) if x.ndim else 0
  if not 0 < added == partitioning.num_padding_rows([x], sharding):
    return x
  return host_fields.extended(x, added)


def _in_order(of_hosts, rows: int, sharding) -> dict[str, np.ndarray]:
  """Returns the rows of all hosts in the order of the global batch.

  Args:
    of_hosts: fields by path, for each `infeed_host_index`.
    rows: B.
    sharding: how batches are split.

  Raises:
    UserError: hosts have different fields.
  """
  names = [sorted(fields) for fields in of_hosts]
  if any(found != names[0] for found in names):
    raise errors.UserError(
      'the fields that stay on the host differ between processes: '
      + ' and '.join(sorted({', '.join(found) for found in names}))
    )
  order = np.argsort(np.concatenate(sharding.rows_of_hosts(rows)))
  return {
    name: np.concatenate([fields[name] for fields in of_hosts])[order]
    for name in names[0]
  }
