"""Position embeddings, which are added to token embeddings.

Shapes: B batch, T time, D embedding dims, H and W height and width in patches.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import base_ops
from pax_compat.layers.embeddings import embedding_tables


def _positions(
  layer: base_layer.BaseLayer,
  seq_length: int | None,
  position: jax.Array | None,
) -> jax.Array:
  """Returns positions [B, T] or [1, T]; checks a layer's arguments."""
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
  """Sinusoidal position embeddings, https://arxiv.org/abs/1706.03762.

  Attributes:
    embedding_dims: D; if it is odd, the last element is 0.
    min_timescale: factor on all frequencies; with 1, the shortest period is
      2 pi.
    max_timescale: with a min_timescale of 1, the longest period is 2 pi times
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
      seq_length: T; not needed with `position`.
      position: [B, T], the position of each token, for instance in packed
        rows; None takes 0..T-1 in every row.

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
  """Learned position embeddings: a table with one row for each position.

  Attributes:
    embedding_dims: D.
    max_seq_length: number of positions.
    lookup_style: 'index' or 'matmul', for given positions; see
      `embedding_tables.lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
    array_lookup_tpl: the lookup by 'index'; see `base_ops`.
    einsum_tpl: the product of a lookup by 'matmul'.
  """

  ActivationSharding = embedding_tables.VectorsSharding
  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'array_lookup_tpl',
    'einsum_tpl',
  )

  embedding_dims: int = REQUIRED
  max_seq_length: int = 10_240
  lookup_style: str = 'matmul'
  scale_sqrt_depth: bool = False
  array_lookup_tpl: Config = sub_config_field(base_ops.ArrayLookup)
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('array_lookup', self.array_lookup_tpl.clone())
    self.create_child('einsum', self.einsum_tpl.clone())
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
      seq_length: T. With `position`, a strict upper bound of positions, so that
        only that many rows are used.
      position: [B, T], int, the position of each token; None takes 0..T-1 in
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
        f' expected at most max_seq_length, {self.max_seq_length}'
      )
    table = self.theta.emb_var[:seq_length]
    if position is None:
      vectors = table[None]
    else:
      vectors = embedding_tables.replaceable_lookup(self, table, rows)
    vectors = embedding_tables.with_tap(
      self, table, rows, vectors, self.max_seq_length
    )
    if self.scale_sqrt_depth:
      vectors = vectors * math.sqrt(self.embedding_dims)
    return embedding_tables.shard_vectors(self, vectors)


class PositionalEmbedding2D(base_layer.BaseLayer):
  """Sinusoidal position embeddings of the patches of an image.

  Half of each vector encodes the row, the other half the column, both relative
  to the middle of the image.

  Attributes:
    h: H.
    w: W.
    embedding_dims: D, a multiple of 4.
    num_prepend_cls_tokens: number of zero vectors before the patches.
    num_append_cls_tokens: number of zero vectors after the patches.
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
      seq_length: number of vectors, checked if given.
      position: not supported; must be None.

    Raises:
      UserError: the arguments or `embedding_dims` are invalid.
    """
    dims = self.embedding_dims
    before, after = self.num_prepend_cls_tokens, self.num_append_cls_tokens
    length = before + self.h * self.w + after
    if dims % 4:
      raise errors.wrong_field(self, 'embedding_dims', 'a multiple of 4')
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
