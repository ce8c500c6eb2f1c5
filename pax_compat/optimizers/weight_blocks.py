"""Weights as blocks of limited size, each with a matrix per dimension.

Shapes: T_i size of dimension i of a weight, after small dimensions are merged;
N number of blocks; D_i size of dimension i of a block.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def merged_shape(shape: Sequence[int], max_size: int) -> tuple[int, ...]:
  """Returns a shape with neighbouring dimensions merged into one.

  Args:
    shape: shape of a weight.
    max_size: dimensions are merged while their product is at most this.

  Example:

  >>> merged_shape([1, 2, 512, 1, 2048, 1, 3, 4], 1024)
  (1024, 2048, 12)
  """
  merged, product = [], 1
  for size in shape:
    if product * size > max_size:
      merged.append(product)
      product = 1
    product *= size
  merged.append(product)
  return tuple(n for n in merged if n > 1) or ((1,) if shape else ())


class WeightBlocks:
  """How a weight is split into blocks [D_1, D_2, ...].

  Blocks at the end of a dimension that the block size does not divide are
  padded with zeros.

  Attributes:
    block_shape: (D_1, D_2, ...).
    num_blocks: N.
  """

  def __init__(self, shape: Sequence[int], block_size: int, merged_size: int):
    """Splits a weight.

    Args:
      shape: shape of the weight.
      block_size: the largest D_i; 0 for no blocks.
      merged_size: the largest size of merged dimensions; 0 for none merged.
    """
    self._shape = tuple(shape)
    whole = merged_shape(shape, merged_size) if merged_size else self._shape
    self._whole = whole
    self.block_shape = tuple(
      min(n, block_size) if block_size > 0 else n for n in whole
    )
    self._counts = tuple(
      -(-n // d) for n, d in zip(whole, self.block_shape, strict=True)
    )
    self.num_blocks = math.prod(self._counts)

  def sizes(self, dim: int) -> np.ndarray:
    """Returns the sizes [N] of a dimension of the blocks, without padding."""
    size, limit = self._whole[dim], self.block_shape[dim]
    return np.array(
      [
        min(limit, size - index[dim] * limit)
        for index in itertools.product(*map(range, self._counts))
      ],
      np.int32,
    )

  def split(self, weight: jax.Array) -> jax.Array:
    """Returns the blocks [N, D_1, ...] of an array of the weight's shape."""
    whole = weight.reshape(self._whole)
    sizes = zip(self._counts, self.block_shape, self._whole, strict=True)
    padded = jnp.pad(whole, [(0, c * d - n) for c, d, n in sizes])
    pairs = zip(self._counts, self.block_shape, strict=True)
    parts = padded.reshape([n for pair in pairs for n in pair])
    rank = len(self._whole)
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    return parts.transpose(order).reshape(self.num_blocks, *self.block_shape)

  def join(self, blocks: jax.Array) -> jax.Array:
    """Returns the array of the weight's shape; reverses `split`."""
    rank = len(self._whole)
    parts = blocks.reshape(self._counts + self.block_shape)
    order = [dim for i in range(rank) for dim in (i, rank + i)]
    sizes = zip(self._counts, self.block_shape, strict=True)
    padded = parts.transpose(order).reshape([c * d for c, d in sizes])
    return padded[tuple(map(slice, self._whole))].reshape(self._shape)
