"""What all processes know of a batch, for the first of them.

Shapes: B batch of all processes together, P processes.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning
from pax_compat.trainer.feeding import prefetching

# Lengths are rounded up to powers of two, at least this one: each that is new
# is compiled for.
_LEAST_BYTES = 1024


class Examples(NamedTuple):
  """The rows of a batch, as far as they do not come from the model.

  Attributes:
    host: the fields that stayed on the host, by path, [B, ...]; none on
      processes but the first.
    counts: [B], bool, which rows count.
  """

  host: dict[str, np.ndarray]
  counts: np.ndarray


def examples(
  fed: prefetching.FedBatch, sharding: partitioning.BatchSharding
) -> Examples:
  """Returns the rows of a batch of all processes, each once.

  All processes call it at the same time.

  Args:
    fed: this process's batch.
    sharding: how batches are split.

  Raises:
    UserError: a field that stays on the host has not a row for each example.
  """
  rows = example_rows.num_rows(fed.arrays)
  weights = example_weights(fed.arrays)
  counts = np.ones(rows, bool) if weights is None else whole(weights) != 0
  return Examples(_host_fields(fed.host, rows, sharding), counts)


def whole(tree: Any) -> Any:
  """Returns arrays that are split over all processes' devices, as numpy's.

  All processes call it at the same time.
  """
  return multihost_utils.process_allgather(tree, tiled=True)


def example_weights(batch: NestedMap) -> jax.Array | None:
  """Returns what rows weigh [B], where the batch, or its task's, says it."""
  inner = [x for x in batch.values() if isinstance(x, NestedMap)]
  for fields in (batch, *inner):
    if example_rows.WEIGHTS in fields:
      return fields[example_rows.WEIGHTS]
  return None


def _host_fields(host, rows: int, sharding) -> dict[str, np.ndarray]:
  own = rows // sharding.num_infeed_hosts
  for path, x in host.items():
    if x.shape[:1] != (own,):
      raise errors.UserError(
        f'the field {path!r} of a batch stays on the host, and has the shape'
        f' {list(x.shape)}; expected {own} rows, one for each example'
      )
  if not host or jax.process_count() == 1:
    return host
  data = np.frombuffer(host_fields.to_bytes(host), np.uint8)
  place = np.int32(sharding.infeed_host_index)
  sizes = np.array([data.size, place], np.int32)
  sizes, places = multihost_utils.process_allgather(sizes).T  # Each [P].
  room = max(_LEAST_BYTES, 1 << (int(sizes.max()) - 1).bit_length())
  sent = np.zeros(room, np.uint8)
  sent[: data.size] = data
  received = multihost_utils.process_allgather(sent)  # [P, room]
  if jax.process_index():
    return {}
  parts: dict[int, dict[str, np.ndarray]] = {}
  for text, size, index in zip(received, sizes, places, strict=True):
    if int(index) not in parts:  # Others read the same rows.
      parts[int(index)] = host_fields.from_bytes(text[:size].tobytes())
  return _in_order([parts[i] for i in sorted(parts)], rows, sharding)


def _in_order(parts, rows: int, sharding) -> dict[str, np.ndarray]:
  """Puts the rows of `parts`, in order of `infeed_host_index`, in their places.

  Raises:
    UserError: they do not have the same fields.
  """
  names = [sorted(part) for part in parts]
  if any(found != names[0] for found in names):
    raise errors.UserError(
      'the fields that stay on the host differ between processes: '
      + ' and '.join(sorted({', '.join(found) for found in names}))
    )
  order = np.argsort(np.concatenate(sharding.rows_of_hosts(rows)))
  return {
    name: np.concatenate([part[name] for part in parts])[order]
    for name in names[0]
  }
