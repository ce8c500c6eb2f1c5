"""Blocks within a dimension that is summed over, with a scale for each."""

import logging
from collections.abc import Sequence

from pax_compat import errors


def get_scale_shape(
  weight_shape: Sequence[int], contract_dims: Sequence[int]
) -> list[int]:
  """Returns a shape without the dimensions that are summed over."""
  return [n for i, n in enumerate(weight_shape) if i not in contract_dims]


def get_sub_channel_shape(
  shape: Sequence[int],
  block_size: int,
  contract_dims: Sequence[int],
  insert_sub_channel: bool = True,
  error_on_misaligned_shape: bool = False,
) -> tuple[list[int], list[int]]:
  """Returns a shape whose largest dimension that is summed over is in blocks.

  >>> get_sub_channel_shape([8, 3], 4, [0])
  ([2, 4, 3], [1])

  Args:
    shape: shape of the weight.
    block_size: size of a block; 0 is one block.
    contract_dims: dimensions that are summed over.
    insert_sub_channel: whether the number of blocks is a dimension before that
      of the block; else the first dimension that is not summed over has it as a
      factor.
    error_on_misaligned_shape: whether a dimension that is not a multiple of the
      block size is an error; else it stays as it is.

  Returns:
    The shape, and the dimensions to sum over.

  Raises:
    UserError: see `error_on_misaligned_shape`.
  """
  shape, dims = list(shape), list(contract_dims)
  if block_size <= 0:
    return shape, dims
  largest = max(range(len(dims)), key=lambda i: shape[dims[i]])
  dim = dims[largest]
  if block_size >= shape[dim]:
    return shape, dims
  if shape[dim] % block_size:
    message = (
      f'block_size is {block_size}, of which dimension {dim} of {shape} is not'
      ' a multiple'
    )
    if error_on_misaligned_shape:
      raise errors.UserError(message)
    logging.warning('%s; it has one scale', message)
    return shape, dims
  blocks = shape[dim] // block_size
  shape[dim] = block_size
  if insert_sub_channel:
    shape.insert(dim, blocks)
    return shape, dims[:largest] + [i + 1 for i in dims[largest:]]
  kept = next(i for i in range(len(shape)) if i not in dims)
  shape[kept] *= blocks
  return shape, dims


def compute_shape_with_subchannels(
  sub_channels: int,
  inputs_shape: Sequence[int],
  contract_dims: Sequence[int],
  min_sub_channel_size: int = -1,
) -> list[int]:
  """Returns a shape with a number of blocks as factor of a kept dimension.

  The largest dimension that is summed over is halved, as long as it is even and
  there are fewer blocks than asked for.

  >>> compute_shape_with_subchannels(4, [8, 3], [0])
  [2, 12]

  Args:
    sub_channels: the number of blocks, a power of 2.
    inputs_shape: the shape.
    contract_dims: dimensions that are summed over.
    min_sub_channel_size: the smallest size of a block.

  Raises:
    UserError: the dimension is smaller than the number of blocks.
  """
  shape = list(inputs_shape)
  dim = max(contract_dims, key=lambda i: shape[i])
  if shape[dim] < sub_channels:
    raise errors.UserError(
      f'dimension {dim} of {shape} cannot be split in {sub_channels} blocks'
    )
  kept = next(i for i in range(len(shape)) if i not in contract_dims)
  blocks = 1
  while (
    blocks < sub_channels
    and shape[dim] % 2 == 0
    and shape[dim] // 2 >= min_sub_channel_size
  ):
    shape[dim] //= 2
    shape[kept] *= 2
    blocks *= 2
  return shape
