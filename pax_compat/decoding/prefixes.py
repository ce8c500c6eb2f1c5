"""Beginnings of sequences, of different lengths.

A batch has them left-aligned, padding behind. To be read at once, and to be
continued at the same position in every row, they are right-aligned.

Shapes: B batch, P prefix, T positions in all.
"""

import flax.struct
import jax
import jax.numpy as jnp


class Prefix(flax.struct.PyTreeNode):
  """What sequences begin with.

  Attributes:
    ids: [B, P], int, 0 outside of the prefixes.
    lengths: [B], int, how many tokens a prefix has, 1 at least.
    offsets: [B], int, where it begins.
  """

  ids: jax.Array
  lengths: jax.Array
  offsets: jax.Array


def create(ids: jax.Array, lengths: jax.Array) -> Prefix:
  """Returns the first `lengths` [B] of the tokens `ids` [B, P].

  There is always one token, because the first cannot be decoded: a row without
  any only fills a batch.
  """
  lengths = jnp.clip(lengths.astype(jnp.int32), 1, ids.shape[1])
  kept = jnp.where(jnp.arange(ids.shape[1]) < lengths[:, None], ids, 0)
  return Prefix(ids=kept, lengths=lengths, offsets=jnp.zeros_like(lengths))


def right_aligned(prefix: Prefix) -> Prefix:
  """Returns a left-aligned prefix with the padding in front."""
  offsets = prefix.ids.shape[1] - prefix.lengths
  return prefix.replace(
    ids=left_aligned(prefix.ids, -offsets, 0), offsets=offsets
  )


def cut(prefix: Prefix, length: int) -> Prefix:
  """Returns a left-aligned prefix of at most `length` tokens."""
  return prefix.replace(
    ids=prefix.ids[:, :length], lengths=jnp.minimum(prefix.lengths, length)
  )


def with_room(prefix: Prefix, length: int) -> Prefix:
  """Returns a prefix in `length` positions, as many or more than it has."""
  missing = length - prefix.ids.shape[1]
  return prefix.replace(ids=jnp.pad(prefix.ids, ((0, 0), (0, missing))))


def left_aligned(x: jax.Array, offsets: jax.Array, fill: float) -> jax.Array:
  """Returns each row of `x` [B, T] moved to the left by its offset [B].

  Args:
    x: [B, T].
    offsets: [B], int, to the right where negative.
    fill: what comes in at the end.
  """
  size = x.shape[1]
  source = jnp.arange(size) + offsets[:, None]
  moved = jnp.take_along_axis(x, jnp.clip(source, 0, size - 1), axis=1)
  return jnp.where((source >= 0) & (source < size), moved, fill).astype(x.dtype)
