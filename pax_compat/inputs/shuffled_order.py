"""A random order of so many things, of which any part can be asked for.

The numbers are the same on every machine and with every version of NumPy: of
its generators only the raw numbers are used, which do not change.
"""

import numpy as np

# Up to so many are sorted by random numbers, which takes a few milliseconds.
_MOST_TO_SORT = 1 << 16
_NUM_ROUNDS = 8  # Even, so that the halves of a number have their first widths.


class ShuffledOrder:
  """A random permutation of 0, ..., size - 1.

  The order of many things takes no memory and no time to begin with: a Feistel
  network permutes the numbers of as many bits as are needed, and what comes out
  too large goes through it again.
  """

  def __init__(self, size: int, *, seed: int, epoch: int):
    """Chooses the order.

    Args:
      size: how many things there are.
      seed: chooses the orders.
      epoch: which of them; at least 0, as the seed.
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
    """Returns what stands at some positions of the order.

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
    """Returns the images [n] of numbers of so many bits [n]."""
    high, low = self._bits // 2, self._bits - self._bits // 2
    for key in self._keys:
      right = x & np.uint64((1 << low) - 1)
      left = x >> np.uint64(low)
      left ^= _mixed(right ^ key) & np.uint64((1 << high) - 1)
      x = right << np.uint64(high) | left
      high, low = low, high
    return x


def _mixed(x: np.ndarray) -> np.ndarray:
  """Returns numbers [n] each bit of which depends on all bits of `x` [n]."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
