"""Sequences as blocks, each with what is before and after it.

Shapes: B batch, T time, W positions of a block, U blocks, C positions of a
block and of its context, L and R positions of a window up to the target
(inclusive) and after it.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors


def shift_1d(inputs: jax.Array, offset: int, axis: int) -> jax.Array:
  """Returns the inputs, shifted along an axis; zeros move in.

  Args:
    inputs: any shape.
    offset: positions to the right; to the left if it is negative.
    axis: along which to shift.
  """
  size = inputs.shape[axis]
  kept = max(size - abs(offset), 0)
  first = min(-offset, size) if offset < 0 else 0
  rest = jax.lax.slice_in_dim(inputs, first, first + kept, axis=axis)
  pads = [(0, 0)] * inputs.ndim
  new = size - kept
  pads[axis] = (new, 0) if offset > 0 else (0, new)
  return jnp.pad(rest, pads)


def convert_to_block(
  x: jax.Array, block_size: int, padding_val: float = 0.0
) -> jax.Array:
  """Returns a sequence as blocks, [B, U, W, ...].

  Args:
    x: [B, T, ...].
    block_size: W.
    padding_val: fills up the last block.

  Raises:
    UserError: W is less than 1.
  """
  _check_size(block_size)
  blocks = -(-x.shape[1] // block_size)
  pads = [(0, 0)] * x.ndim
  pads[1] = (0, blocks * block_size - x.shape[1])
  x = jnp.pad(x, pads, constant_values=padding_val)
  return x.reshape(x.shape[0], blocks, block_size, *x.shape[2:])


def extract_block_context(
  x: jax.Array,
  block_size: int,
  left_context: int,
  right_context: int,
  padding_val: float = 0.0,
) -> jax.Array:
  """Returns each block with its context, [B, U, C, ...].

  Args:
    x: [B, T, ...].
    block_size: W.
    left_context: L, up to W + 1.
    right_context: R, up to W.
    padding_val: stands for what is outside the sequence.

  Raises:
    UserError: W, L or R is out of range.
  """
  _check_size(block_size)
  for name, value, least, most in (
    ('left_context', left_context, 1, block_size + 1),
    ('right_context', right_context, 0, block_size),
  ):
    if not least <= value <= most:
      raise errors.UserError(
        f'extract_block_context: {name} is {value}; expected {least} to {most}'
      )
  blocks = -(-x.shape[1] // block_size)
  before = left_context - 1
  pads = [(0, 0)] * x.ndim
  pads[1] = (before, blocks * block_size - x.shape[1] + right_context)
  x = jnp.pad(x, pads, constant_values=padding_val)
  firsts = jnp.arange(blocks)[:, None] * block_size
  return x[:, firsts + jnp.arange(before + block_size + right_context)]


def local_mask(
  seq_len: int, block_size: int, left_context: int, right_context: int
) -> jax.Array:
  """Returns which positions of a block's context each of its positions sees.

  Args:
    seq_len: T.
    block_size: W.
    left_context: L.
    right_context: R.

  Returns:
    [U, W, C], boolean; see `extract_block_context`.
  """
  blocks = -(-seq_len // block_size)
  before = left_context - 1
  seen = before + block_size + right_context
  targets = jnp.arange(blocks * block_size).reshape(blocks, block_size, 1)
  sources = jnp.arange(blocks)[:, None] * block_size + jnp.arange(seen) - before
  sources = sources[:, None]
  distance = targets - sources
  inside = (targets < seq_len) & (0 <= sources) & (sources < seq_len)
  return inside & (-right_context <= distance) & (distance < left_context)


def _check_size(block_size: int):
  if block_size < 1:
    raise errors.UserError(
      f'the block size is {block_size}; expected 1 or more'
    )


def chunk(x: jax.Array, *, chunk_size: int, axis: int = 1) -> jax.Array:
  """Returns an array in chunks along an axis, [chunks, ..., chunk_size, ...].

  Args:
    x: any shape; zeros fill up the last chunk.
    chunk_size: elements of a chunk.
    axis: along which to split, not negative.
  """
  chunks = -(-x.shape[axis] // chunk_size)
  pads = [(0, 0)] * x.ndim
  pads[axis] = (0, chunks * chunk_size - x.shape[axis])
  before, after = x.shape[:axis], x.shape[axis + 1 :]
  x = jnp.pad(x, pads).reshape(*before, chunks, chunk_size, *after)
  return jnp.moveaxis(x, axis, 0)


def unchunk(
  chunk_x: jax.Array, axis: int = 1, seqlen: int | None = None
) -> jax.Array:
  """Returns the array that `chunk` split.

  Args:
    chunk_x: [chunks, ..., chunk_size, ...].
    axis: as for `chunk`.
    seqlen: elements along the axis; None keeps the zeros at the end.
  """
  x = jnp.moveaxis(chunk_x, 0, axis)
  x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
  return x if seqlen is None else jax.lax.slice_in_dim(x, 0, seqlen, axis=axis)
