"""Prefixes of sequences, of different lengths.

In a batch they are left-aligned. To be read in one step, and continued at the
same position in every row, they are right-aligned:

>>> ids = jnp.array([[5, 6, 7], [8, 0, 0]])
>>> prefix = create(ids, jnp.array([3, 1]))
>>> print(pad(right_aligned(prefix), 5).ids)
[[5 6 7 0 0]
 [0 0 8 0 0]]

Shapes: B batch, P prefix, T maximum number of positions.
"""

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat.decoder_hparams import DecoderHParams


class Prefix(flax.struct.PyTreeNode):
  """A batch of prefixes.

  Attributes:
    ids: [B, P], int, 0 outside of the prefixes.
    lengths: [B], int, number of tokens, at least 1.
    offsets: [B], int, index of the first token.
  """

  ids: jax.Array
  lengths: jax.Array
  offsets: jax.Array


def create(ids: jax.Array, lengths: jax.Array) -> Prefix:
  """Returns prefixes of the first `lengths` [B] of the tokens `ids` [B, P].

  A length is at least 1, because the first token cannot be decoded; only
  padding rows have less.
  """
  lengths = jnp.clip(lengths.astype(jnp.int32), 1, ids.shape[1])
  kept = jnp.where(jnp.arange(ids.shape[1]) < lengths[:, None], ids, 0)
  return Prefix(ids=kept, lengths=lengths, offsets=jnp.zeros_like(lengths))


def content(prefix: Prefix) -> tuple[jax.Array, jax.Array]:
  """Returns left-aligned tokens [B, P], and whether each is one."""
  return prefix.ids, jnp.arange(prefix.ids.shape[1]) < prefix.lengths[:, None]


def right_aligned(prefix: Prefix) -> Prefix:
  """Moves the padding of left-aligned prefixes to the front."""
  offsets = prefix.ids.shape[1] - prefix.lengths
  return prefix.replace(
    ids=left_aligned(prefix.ids, -offsets, 0), offsets=offsets
  )


def truncate(prefix: Prefix, length: int) -> Prefix:
  """Truncates left-aligned prefixes to `length` tokens."""
  return prefix.replace(
    ids=prefix.ids[:, :length], lengths=jnp.minimum(prefix.lengths, length)
  )


def pad(prefix: Prefix, length: int) -> Prefix:
  """Pads prefixes at the end to `length` positions, P or more."""
  missing = length - prefix.ids.shape[1]
  return prefix.replace(ids=jnp.pad(prefix.ids, ((0, 0), (0, missing))))


def with_room(prefix: Prefix, settings: DecoderHParams) -> Prefix:
  """Pads prefixes that are read in one step for the first decoding stage."""
  if not settings.fprop_for_prefix:
    return prefix
  return pad(prefix, prefix.ids.shape[1] + settings.decode_stages[0])


def left_aligned(x: jax.Array, offsets: jax.Array, fill: float) -> jax.Array:
  """Shifts each row of `x` [B, T] to the left by its offset.

  Args:
    x: [B, T].
    offsets: [B], int; negative ones shift to the right.
    fill: value of the freed positions.
  """
  size = x.shape[1]
  source = jnp.arange(size) + offsets[:, None]
  moved = jnp.take_along_axis(x, jnp.clip(source, 0, size - 1), axis=1)
  return jnp.where((source >= 0) & (source < size), moved, fill).astype(x.dtype)
