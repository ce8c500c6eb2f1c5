"""Batches of sentence pairs for tests of translation."""

import numpy as np

from tests.adaptors.bridge.families import sentence_pairs

# Tokens of the first example of a row; every row has a second one.
_FIRST = 2


def packed_batch(seed: int) -> dict[str, np.ndarray]:
  """Returns a batch by dotted name, whose rows are two examples each.

  Args:
    seed: of the ids.
  """
  batch = sentence_pairs.batch(seed)
  for side in ('src', 'tgt'):
    paddings = batch[f'{side}.paddings']
    positions = np.broadcast_to(np.arange(paddings.shape[1]), paddings.shape)
    second = positions >= _FIRST
    ids = np.where(second, 2.0, 1.0).astype(np.float32)
    batch[f'{side}.segment_ids'] = ids * (1 - paddings)
    batch[f'{side}.segment_pos'] = np.where(
      second, positions - _FIRST, positions
    ).astype(np.int32)
  return batch
