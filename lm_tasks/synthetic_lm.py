"""Made-up token sequences: an input that needs no data.

Shapes: B rows, T time.
"""

import numpy as np

from pax_compat import base_input
from pax_compat.config import REQUIRED
from pax_compat.nested_map import NestedMap


class SyntheticLmInput(base_input.BaseInput):
  """Rows that count up in steps, from a start and by a step of their own.

  A model that looks back two tokens can tell what comes next, so the loss
  falls to that of the first two tokens of a row. A batch depends on nothing but
  the seed, its number and the host, and so a run that continues gets what it
  would have had.

  Attributes:
    seq_len: T, tokens of a row.
    vocab_size: how many tokens there are. Token 0 stands at the beginning of
      each row only.
    num_batches: how many batches there are; None for no end.
  """

  seq_len: int = REQUIRED
  vocab_size: int = REQUIRED
  num_batches: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._done = 0

  def get_next(self) -> NestedMap:
    """Returns the next batch, packed with one segment in each row.

    Returns:
      `ids`, `labels`, `segment_ids` and `segment_pos`, [B, T] int32;
      `paddings` and `weights`, [B, T] float32.
    """
    if self._done == self.num_batches:
      raise StopIteration
    key = (self.input_random_seed or 0, self._done, self.infeed_host_index)
    self._done += 1
    random = np.random.default_rng(key)
    shape = [self.batch_size, 1]
    start = random.integers(0, self.vocab_size, shape)
    stride = random.integers(1, 8, shape)
    positions = np.arange(self.seq_len)
    labels = 1 + (start + stride * positions) % (self.vocab_size - 1)
    labels = labels.astype(np.int32)
    ids = np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)
    return NestedMap(
      ids=ids,
      labels=labels,
      paddings=np.zeros(labels.shape, np.float32),
      weights=np.ones(labels.shape, np.float32),
      segment_ids=np.ones_like(labels),
      segment_pos=np.tile(positions.astype(np.int32), [self.batch_size, 1]),
    )

  def reset(self):
    self._done = 0

  def resume_at(self, step: int):
    self._done = step
