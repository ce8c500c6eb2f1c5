"""The batches of a comparison: an experiment's own, truncated if needed.

Shapes: B batch, T time.
"""

import numpy as np

from adaptors.experiments import lingvo_experiment
from adaptors.params import shrinking
from pax_compat import errors
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap

# Names of fields with token ids, without their parents'.
_IDS = ('ids', 'labels', 'masked_ids')
_PADDINGS, _SEGMENTS = 'paddings', 'segment_ids'


def read(
  experiment: lingvo_experiment.LingvoExperiment, count: int
) -> list[NestedMap]:
  """Returns the first batches of an experiment's training input.

  Raises:
    UserError: the input cannot be read, or ends too early.
  """
  config = experiment.training_dataset()
  try:
    data = config.Instantiate()
  except errors.UserError as error:
    raise errors.UserError(
      f'{error}\nexpected readable files, or --synthetic for random ids'
    ) from error
  try:
    return [
      host_fields.for_devices(data.get_next(), data.is_host_field)
      for _ in range(count)
    ]
  except StopIteration:
    raise errors.UserError(
      f'the training input ended before {count} batches; expected'
      ' --steps to be lower'
    ) from None
  finally:
    data.close()


def truncate(
  batch: NestedMap, sizes: shrinking.Sizes, vocab_size: int
) -> NestedMap:
  """Returns a batch that fits a shrunk model.

  Args:
    batch: arrays [B, ...] and [B, T, ...].
    sizes: rows and positions beyond them are dropped.
    vocab_size: ids are taken modulo this.
  """

  def fit(path, x):
    x = x[: sizes.batch_size]
    if x.ndim > 1:
      x = x[:, : sizes.sequence_length]
    if path.rpartition('.')[2] in _IDS:
      x = x % np.asarray(vocab_size, x.dtype)
    return x

  return _mapped(fit, batch)


def trimmed(batch: NestedMap) -> NestedMap:
  """Returns a batch without the positions that are padding in all rows.

  Lingvo's language models do the same, which changes their layers' outputs.
  """
  if _PADDINGS not in batch:
    return batch
  shape = batch[_PADDINGS].shape
  used = np.flatnonzero(np.any(batch[_PADDINGS] < 0.5, axis=0))
  length = int(used[-1]) + 1 if used.size else shape[1]
  return _mapped(
    lambda _, x: x[:, :length] if x.shape[:2] == shape else x, batch
  )


def mask(batch: NestedMap) -> np.ndarray | None:
  """Returns [B, T], 1 for real positions, 0 for padding; None if unknown."""
  for path, x in batch.flatten_items():
    name = path.rpartition('.')[2]
    if name == _PADDINGS:
      return 1 - x
    if name == _SEGMENTS:
      return (x > 0).astype(np.float32)
  return None


def nested(arrays: dict[str, np.ndarray]) -> NestedMap:
  """Returns a nested batch from arrays by dotted name."""
  batch = NestedMap()
  for path, x in arrays.items():
    *parents, last = path.split('.')
    node = batch
    for parent in parents:
      node = node.setdefault(parent, NestedMap())
    node[last] = x
  return batch


def describe(batches: list[NestedMap]) -> str:
  """Returns the fields of the first batch with their shapes."""
  return ', '.join(
    f'{path}[{",".join(map(str, x.shape))}]'
    for path, x in batches[0].flatten_items()
  )


def _mapped(fn, batch: NestedMap) -> NestedMap:
  return nested({path: fn(path, x) for path, x in batch.flatten_items()})
