"""Random permutations with random access.

The order is the same on every machine and with every version of NumPy: it uses
only the raw numbers of NumPy's generators, which do not change.
"""

import numpy as np

# Up to this size items are sorted by random keys, in a few milliseconds.
_MOST_TO_SORT = 1 << 16
_NUM_ROUNDS = 8  # Even, so that both halves keep their widths.


class ShuffledOrder:
  """A random permutation of 0, ..., size - 1.

  A long order needs no memory and no set-up: a Feistel network permutes the
  numbers of the necessary bits, and results that are too large pass through it
  again (cycle walking).
  """

  def __init__(self, size: int, *, seed: int, epoch: int):
    """Draws the order.

    Args:
      size: number of items.
      seed: at least 0.
      epoch: at least 0; each epoch has a different order.
    """
    self._size = size
    self._bits = max(size - 1, 1).bit_length()
    sequence = np.random.SeedSequence([seed, epoch])
    self._sorted = None
    if size <= _MOST_TO_SORT:
      keys = np.random.PCG64(sequence).random_raw(size)
      self._sorted = np.argsort(keys, kind='stable')
    else:
      self._keys = sequence.generate_state(_NUM_ROUNDS, np.uint64)

  def at(self, positions: np.ndarray) -> np.ndarray:
    """Returns the items at some positions of the order.

    Args:
      positions: [n], int, from 0 to size - 1.
    """
    if self._sorted is not None:
      return self._sorted[positions]
    found = self._permuted(positions.astype(np.uint64))
    while (outside := np.flatnonzero(found >= self._size)).size:
      found[outside] = self._permuted(found[outside])
    return found.astype(np.int64)

  def _permuted(self, x: np.ndarray) -> np.ndarray:
    """Returns the permuted numbers [n] of `x` [n], of `_bits` bits."""
    high, low = self._bits // 2, self._bits - self._bits // 2
    for key in self._keys:
      right = x & np.uint64((1 << low) - 1)
      left = x >> np.uint64(low)
      left ^= _mixed(right ^ key) & np.uint64((1 << high) - 1)
      x = right << np.uint64(high) | left
      high, low = low, high
    return x


def _mixed(x: np.ndarray) -> np.ndarray:
  """Returns hashes [n]: each bit depends on all bits of `x` [n]."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
