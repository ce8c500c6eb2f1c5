"""Embeddings of positions, which are added to those of tokens.

Shapes: B batch, T time, D embedding dims, H and W height and width in patches.
"""

import math

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED
from pax_compat.layers.embeddings import embedding_tables


def _positions(
  layer: base_layer.BaseLayer,
  seq_length: int | None,
  position: jax.Array | None,
) -> jax.Array:
  """Returns positions [B, T] or [1, T], checking a layer's arguments."""
  where = type(layer).__name__
  if position is None:
    if seq_length is None:
      raise errors.UserError(f'{where}: expected a seq_length or positions')
    return jnp.arange(seq_length)[None]
  if position.ndim != 2:
    raise errors.UserError(
      f'{where}: positions have the shape {list(position.shape)}; expected'
      ' [batch, time]'
    )
  return position


class PositionalEmbedding(base_layer.BaseLayer):
  """Sinusoidal positions of 'Attention is all you need'.

  Attributes:
    embedding_dims: D; where it is odd, the last element is 0.
    min_timescale: multiplies all frequencies. Where it is 1, the shortest
      period is 2 pi.
    max_timescale: where min_timescale is 1, the longest period is 2 pi times
      this.
  """

  embedding_dims: int = REQUIRED
  min_timescale: int = 1
  max_timescale: int = 10_000

  def __call__(
    self, seq_length: int | None = None, position: jax.Array | None = None
  ) -> jax.Array:
    """Returns the vectors of positions.

    Args:
      seq_length: T; not needed beside `position`.
      position: [B, T], the position of each token, for instance in a packed
        sequence; None for 0, 1, ... in every row.

    Returns:
      [B, T, D], or [1, T, D] without `position`.
    """
    position = _positions(self, seq_length, position)
    num_timescales = self.embedding_dims // 2
    increment = math.log(self.max_timescale / self.min_timescale) / max(
      1, num_timescales - 1
    )
    inverse = self.min_timescale * jnp.exp(
      jnp.arange(num_timescales, dtype=jnp.float32) * -increment
    )
    angles = position[..., None].astype(jnp.float32) * inverse
    signal = self._signal(angles).astype(self.compute_dtype)
    return self.shard(signal, self.activation_split_dims_mapping.out)

  def _signal(self, angles: jax.Array) -> jax.Array:
    """Returns the vectors [B, T, D] of angles [B, T, D // 2]."""
    signal = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    if self.embedding_dims % 2:
      signal = jnp.pad(signal, [(0, 0), (0, 0), (0, 1)])
    return signal


class TrainablePositionalEmbedding(base_layer.BaseLayer):
  """A table of vectors, one for each position.

  Attributes:
    embedding_dims: D.
    max_seq_length: how many positions there are.
    lookup_style: 'index' or 'matmul', how rows of given positions are taken;
      see `embedding_tables.lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
  """

  ActivationSharding = embedding_tables.VectorsSharding

  embedding_dims: int = REQUIRED
  max_seq_length: int = 10_240
  lookup_style: str = 'matmul'
  scale_sqrt_depth: bool = False

  def setup(self):
    self.create_variable(
      'emb_var',
      WeightHParams(
        [self.max_seq_length, self.embedding_dims],
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def __call__(
    self, seq_length: int | None = None, position: jax.Array | None = None
  ) -> jax.Array:
    """Returns the vectors of positions.

    Args:
      seq_length: T. Beside `position`, it says that positions are smaller than
        it, so that fewer rows have to be looked at.
      position: [B, T], int, the position of each token; None for 0, 1, ... in
        every row.

    Returns:
      [B, T, D], or [1, T, D] without `position`.

    Raises:
      UserError: the sequence is longer than the table.
    """
    rows = _positions(self, seq_length, position)
    if seq_length is not None and seq_length > self.max_seq_length:
      raise errors.UserError(
        f'TrainablePositionalEmbedding: a sequence of {seq_length} positions;'
        f' max_seq_length is {self.max_seq_length}'
      )
    table = self.theta.emb_var[:seq_length]
    if position is None:
      vectors = table[None]
    else:
      vectors = embedding_tables.lookup(table, rows, self.lookup_style)
    if self.scale_sqrt_depth:
      vectors = vectors * math.sqrt(self.embedding_dims)
    return embedding_tables.shard_vectors(self, vectors)


class PositionalEmbedding2D(base_layer.BaseLayer):
  """Sinusoidal positions of the patches of an image.

  A half of each vector says the row, the other half the column, both counted
  from the middle of the image.

  Attributes:
    h: H.
    w: W.
    embedding_dims: D, a multiple of 4.
    num_prepend_cls_tokens: how many vectors of zeros come before the patches.
    num_append_cls_tokens: how many come after them.
  """

  h: int = REQUIRED
  w: int = REQUIRED
  embedding_dims: int = REQUIRED
  num_prepend_cls_tokens: int = 0
  num_append_cls_tokens: int = 0

  def __call__(
    self, seq_length: int | None = None, position: jax.Array | None = None
  ) -> jax.Array:
    """Returns [1, tokens before + H * W + tokens after, D], row by row.

    Args:
      seq_length: number of vectors, if it is to be checked.
      position: not supported: patches are where they are.

    Raises:
      UserError: the arguments or `embedding_dims` do not fit.
    """
    dims = self.embedding_dims
    before, after = self.num_prepend_cls_tokens, self.num_append_cls_tokens
    length = before + self.h * self.w + after
    if dims % 4:
      raise errors.UserError(
        f'PositionalEmbedding2D.embedding_dims is {dims}; expected a multiple'
        ' of 4'
      )
    if position is not None or seq_length not in (None, length):
      raise errors.UserError(
        f'PositionalEmbedding2D: {self.h} x {self.w} patches and'
        f' {before + after} tokens are a sequence of {length} in fixed'
        f' positions; got seq_length {seq_length} and position {position}'
      )
    rows = jnp.broadcast_to(
      _centred(self.h, dims // 2)[:, None], (self.h, self.w, dims // 2)
    )
    columns = jnp.broadcast_to(
      _centred(self.w, dims // 2)[None], (self.h, self.w, dims // 2)
    )
    patches = jnp.concatenate([rows, columns], axis=-1).reshape(-1, dims)
    vectors = jnp.pad(patches, [(before, after), (0, 0)])
    vectors = vectors[None].astype(self.compute_dtype)
    return self.shard(vectors, self.activation_split_dims_mapping.out)


def _centred(count: int, dims: int) -> jax.Array:
  """Returns the vectors [count, dims] of -count / 2, -count / 2 + 1, ..."""
  position = jnp.arange(count) - count / 2
  half = dims // 2
  angles = position[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
