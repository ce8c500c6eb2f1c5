"""The stages of a batch, from the input to the devices, in their order.

A batch is a NestedMap of numpy arrays [B, ...] until the stage `put`, and then
a `DeviceBatch`. `stages` lists what the thread of the `Prefetcher` runs for
each batch:

  | stage              | what it does                                         |
  | ------------------ | ---------------------------------------------------- |
  | read               | `BaseInput.get_next_padded`: the next batch of this  |
  |                    | host, with its ids checked, and padded by the input  |
  | check arrays       | that fields are arrays, and as in the first batch    |
  | compare with specs | the first batch with the specs of the experiment     |
  | record digest      | of rows that several processes read as replicas      |
  | drop padding rows  | for models whose metrics may count them              |
  | split host fields  | strings and keys of examples leave the batch         |
  | measure            | its shapes, and its number of tokens                 |
  | put                | this host's rows of the global, sharded arrays       |
  | record position    | the state of the input after this batch              |
  | record order       | a digest of what the input has read so far           |

For example, a pipeline of two stages:

  >>> batches = iter([NestedMap(ids=np.ones([8, 4]))])
  >>> pipeline = Pipeline([read(lambda: next(batches)), measure()])
  >>> pipeline.next().shapes
  'ids[8,4]'
  >>> pipeline.next() is None  # The end of the data.
  True

Shapes: B batch of this process.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from pax_compat import base_input
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import agreement, batch_checks, sources


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceBatch:
  """A batch that is on the devices, and its metadata.

  Attributes:
    arrays: the batch, part of the global one.
    shapes: string that is the same for batches of the same shapes.
    tokens: summed weights of the positions of this process's rows.
    wait_seconds: how long the consumer waited for it.
    host: the fields that stay on the host, of this process's rows, by path.
    input_state: state of the input right after the batch; None without one.
    rows_digest: digest of all rows up to this batch; see `ReplicaRowCheck`.
    order_digest: `BaseInput.order_digest` right after the batch.
  """

  arrays: NestedMap
  shapes: str = ''
  tokens: float = 0.0
  wait_seconds: float = 0.0
  host: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  input_state: bytes | None = None
  rows_digest: bytes = b''
  order_digest: bytes | None = None


class Stage(NamedTuple):
  """One stage.

  Attributes:
    name: of the stage.
    run: maps (batch, metadata) to the batch for the next stage. It adds the
      fields of the `DeviceBatch` that it knows to `metadata`, a dict.
  """

  name: str
  run: Callable[[Any, dict[str, Any]], Any]


_UNKNOWN = sources.Source()


class Pipeline:
  """Runs stages, of which the first one reads.

  Attributes:
    stages: in the order in which they run.
    source: what the first stage reads.
    count: number of batches that were read.
  """

  def __init__(
    self, stages: Iterable[Stage], source: sources.Source = _UNKNOWN
  ):
    self.stages = tuple(stages)
    self.source = source
    self.count = 0

  def next(self) -> DeviceBatch | None:
    """Returns the next batch; None at the end of the data.

    Raises:
      Exception: of a stage, with a note about the batch.
      UserError: of a stage, with the batch in its message; or the input raised
        what is not an error, such as SystemExit.
    """
    first, *others = self.stages
    metadata: dict[str, Any] = {}
    try:
      try:
        batch = first.run(None, metadata)
      except StopIteration:
        return None
      for stage in others:
        batch = stage.run(batch, metadata)
    except BaseException as e:
      error = sources.explain(e, self.source, self.count + 1)
      if error is e:
        raise
      raise error from e
    self.count += 1
    return DeviceBatch(arrays=batch, **metadata)


def stages(
  data: base_input.BaseInput,
  *,
  put: Callable[[NestedMap], Any],
  rows: agreement.ReplicaRowCheck,
  check: Callable[[NestedMap], object] | None = None,
  get_state: Callable[[], bytes | None] | None = None,
  records_order: bool = False,
  drops_padding: bool = False,
) -> list[Stage]:
  """Returns the stages of an input's batches.

  Args:
    data: the input.
    put: sends a batch to the devices.
    rows: records what was read.
    check: compares the first batch with its specs; None without the stage.
    get_state: returns the state of the input; None without the stage.
    records_order: whether there is the stage `record order`.
    drops_padding: whether there is the stage `drop padding rows`.
  """
  found = [
    read(data.get_next_padded),
    check_arrays(batch_checks.BatchCheck(data)),
  ]
  if check is not None:
    found.append(compare_with_specs(check))
  found.append(record_digest(rows))
  if drops_padding:
    found.append(drop_padding_rows())
  found += [
    split_host_fields(data.is_host_field),
    measure(),
    put_on_devices(put),
  ]
  if get_state is not None:
    found.append(record_position(get_state))
  if records_order:
    found.append(record_order(data.order_digest))
  return found


def read(get_next: Callable[[], NestedMap]) -> Stage:
  """Returns the first stage; StopIteration of `get_next` is the end."""
  return Stage('read', lambda batch, metadata: get_next())


def check_arrays(check: Callable[[NestedMap], object]) -> Stage:
  """Returns the stage in which `check` raises if a batch is not valid."""
  return Stage('check arrays', _unchanged(check))


def compare_with_specs(check: Callable[[NestedMap], object]) -> Stage:
  """Returns the stage in which `check` raises if a batch is not as declared."""
  return Stage('compare with specs', _unchanged(check))


def record_digest(rows: agreement.ReplicaRowCheck) -> Stage:
  """Returns the stage that records `rows_digest`."""

  def run(batch, metadata):
    rows.record(batch)
    metadata['rows_digest'] = rows.digest()
    return batch

  return Stage('record digest', run)


def drop_padding_rows() -> Stage:
  """Returns the stage that leaves out padding rows at the end of a batch."""
  return Stage(
    'drop padding rows',
    lambda batch, metadata: example_rows.without_padding_rows(batch),
  )


def split_host_fields(
  is_host_field: Callable[[str, np.ndarray], bool],
) -> Stage:
  """Returns the stage that moves fields to `host`."""

  def run(batch, metadata):
    batch, metadata['host'] = host_fields.split(batch, is_host_field)
    return batch

  return Stage('split host fields', run)


def measure() -> Stage:
  """Returns the stage that computes `shapes` and `tokens`."""

  def run(batch, metadata):
    metadata['shapes'] = shapes_of(batch)
    metadata['tokens'] = tokens_in(batch)
    return batch

  return Stage('measure', run)


def put_on_devices(put: Callable[[NestedMap], Any]) -> Stage:
  """Returns the stage that sends a batch to the devices."""
  return Stage('put', lambda batch, metadata: put(batch))


def record_position(get_state: Callable[[], bytes | None]) -> Stage:
  """Returns the stage that records `input_state`."""
  return Stage('record position', _recorded('input_state', get_state))


def record_order(get_digest: Callable[[], bytes | None]) -> Stage:
  """Returns the stage that records `order_digest`."""
  return Stage('record order', _recorded('order_digest', get_digest))


def _unchanged(call):
  def run(batch, metadata):
    del metadata
    call(batch)
    return batch

  return run


def _recorded(field, get_value):
  def run(batch, metadata):
    metadata[field] = get_value()
    return batch

  return run


def shapes_of(batch: NestedMap) -> str:
  """Returns the shapes of a batch, such as `ids[8,64] labels[8,64]`."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(batch)
  return ' '.join(
    f'{jax.tree_util.keystr(path, simple=True, separator=".")}'
    f'[{",".join(map(str, np.shape(x)))}]'
    for path, x in leaves
  )


def tokens_in(batch: NestedMap) -> float:
  """Returns the summed weights of a batch's positions; 0 if it has none."""
  if 'weights' in batch:
    return float(np.sum(batch['weights']))
  if 'paddings' in batch:
    return float(np.size(batch['paddings']) - np.sum(batch['paddings']))
  if len(batch) == 1:
    [inner] = batch.values()
    if isinstance(inner, NestedMap):  # The batch of one of several tasks.
      return tokens_in(inner)
  return 0.0
