"""Synthetic token sequences: an input that needs no data.

Shapes: B rows, T time.
"""

from typing import Any

import jax
import numpy as np

from pax_compat import base_input
from pax_compat.config import REQUIRED
from pax_compat.nested_map import NestedMap

_NUMBERS_AT_A_TIME = 4  # Numbers of Philox per counter value.


class SyntheticLmInput(base_input.BaseInput):
  """Rows that count up, each with a random start and stride.

  Two tokens determine the next one, so the loss falls to that of the first two
  tokens of a row. A row depends only on the seed and its number, and host h of
  H reads the h-th B of the next B * H rows. A run therefore resumes with the
  next rows on any number of hosts.

  Attributes:
    seq_len: T, tokens per row.
    vocab_size: number of tokens. Token 0 is the start of each row, and occurs
      nowhere else.
    num_batches: number of batches; None for an endless input.
  """

  seq_len: int = REQUIRED
  vocab_size: int = REQUIRED
  num_batches: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._rows_read = 0

  @classmethod
  def specs_of_config(cls, config: Any) -> NestedMap:
    shape = [config.batch_size + config.batch_padding_size, config.seq_len]
    ids = jax.ShapeDtypeStruct(shape, np.int32)
    numbers = jax.ShapeDtypeStruct(shape, np.float32)
    return NestedMap(
      ids=ids,
      labels=ids,
      paddings=numbers,
      weights=numbers,
      segment_ids=ids,
      segment_pos=ids,
    )

  @property
  def state_fits_any_hosts(self) -> bool:
    return True

  def get_next(self) -> NestedMap:
    """Returns the next batch, packed with one segment per row.

    Returns:
      `ids`, `labels`, `segment_ids` and `segment_pos`, [B, T] int32;
      `paddings` and `weights`, [B, T] float32.
    """
    rows = self.batch_size * self.num_infeed_hosts
    if self.num_batches is not None:
      if self._rows_read >= self.num_batches * rows:
        raise StopIteration
    first = self._rows_read + self.infeed_host_index * self.batch_size
    self._rows_read += rows
    # Row n is computed from the n-th numbers.
    random = np.random.Philox(key=self.input_random_seed or 0, counter=first)
    drawn = random.random_raw([self.batch_size, _NUMBERS_AT_A_TIME])
    start = (drawn[:, :1] % self.vocab_size).astype(np.int64)
    stride = 1 + (drawn[:, 1:2] % 7).astype(np.int64)
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
    self._rows_read = 0

  def resume_at(self, step: int):
    self._rows_read = step * self.batch_size * self.num_infeed_hosts

  def _get_state_internal(self) -> bytes:
    return b'%d' % self._rows_read

  def _set_state_internal(self, state: bytes):
    self.check(
      state.isdigit(),
      f'the state of {self.name} is {state!r}; expected a number of rows',
    )
    self._rows_read = int(state)
