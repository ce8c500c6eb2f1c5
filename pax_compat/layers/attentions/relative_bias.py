"""Learned relative position biases of attention, as in T5.

https://arxiv.org/abs/1910.10683. Shapes: B batch, T target time, S source time,
N heads, X buckets of distances.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED


class RelativeBias(base_layer.BaseLayer):
  """A bias of the logits for each head and bucket of distances.

  Small distances have a bucket each; larger ones share buckets that grow
  geometrically.

  Attributes:
    num_heads: N.
    use_length_as_position: whether positions are indices in the sequence, even
      if positions are given, as for packed examples. Within an example the
      distances are the same, and the bias has no batch dimension.
    relative_attention_num_buckets: X.
    relative_attention_max_distance: distances from this on share the last
      bucket.
    bidirectional: whether later sources have half of the buckets; else all of
      them share the bucket of distance 0.
    use_xavier_init: whether the initializer is `WeightInit.Xavier()`; else a
      Gaussian of deviation (N * X)^-0.5.
  """

  num_heads: int = REQUIRED
  use_length_as_position: bool = True
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  bidirectional: bool = False
  use_xavier_init: bool = False

  def setup(self):
    buckets = self.relative_attention_num_buckets
    exact = buckets // (4 if self.bidirectional else 2)
    if not 0 < exact < self.relative_attention_max_distance:
      raise errors.UserError(
        f'RelativeBias.relative_attention_num_buckets is {buckets} and'
        ' relative_attention_max_distance is'
        f' {self.relative_attention_max_distance}; expected'
        f' {4 if self.bidirectional else 2} buckets at least, and a distance'
        f' above {exact}, the number of distances with separate buckets'
      )
    shape = [self.num_heads, buckets]
    init = WeightInit.Gaussian(np.prod(shape) ** -0.5)
    if self.use_xavier_init:
      init = WeightInit.Xavier()
    self.create_variable('wrb', WeightHParams(shape, init))

  def __call__(
    self,
    query_segment_pos: jax.Array,
    key_segment_pos: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the bias of whole sequences.

    Args:
      query_segment_pos: [B, T], positions; only T matters if
        `use_length_as_position`.
      key_segment_pos: [B, S], likewise; None takes those of the queries.

    Returns:
      [B, N, T, S], or [1, N, T, S] if `use_length_as_position`.
    """
    if key_segment_pos is None:
      key_segment_pos = query_segment_pos
    if not self.use_length_as_position:
      return self.at(query_segment_pos, key_segment_pos)
    targets, sources = query_segment_pos.shape[1], key_segment_pos.shape[1]
    # The bias depends only on the distance: [N, T + S - 1] numbers, shifted for
    # each target. So the gradient is a sum instead of a scatter.
    distances = np.arange(-targets + 1, sources)
    bias = self.theta.wrb[:, self._buckets(distances)]
    bias = jnp.pad(bias, ((0, 0), (0, 1)))[:, None]
    shape = (self.num_heads, targets, len(distances) + 1)
    return by_source(jnp.broadcast_to(bias, shape), sources)[None]

  def at(
    self, query_positions: jax.Array, key_positions: jax.Array
  ) -> jax.Array:
    """Returns the bias between any positions.

    Args:
      query_positions: [B, T] or [1, T].
      key_positions: [B, S] or [1, S].

    Returns:
      [B, N, T, S], or [1, N, T, S] if both batches are 1.
    """
    distances = key_positions[:, None, :] - query_positions[:, :, None]
    bias = jnp.take(self.theta.wrb, self._buckets(distances), axis=1)
    return jnp.moveaxis(bias, 0, 1)

  def extend_step(
    self, seq_length: int, time_step: jax.Array, steps: int = 1
  ) -> jax.Array:
    """Returns the bias [1, N, L, S] of new positions while decoding.

    Args:
      seq_length: S, the capacity of the cache in positions.
      time_step: [], index of the first of the L new positions.
      steps: L.
    """
    query_positions = time_step + jnp.arange(steps)[None]
    return self.at(query_positions, jnp.arange(seq_length)[None])

  def _buckets(self, distances):
    """Returns the buckets of distances, source minus target, of any shape."""
    # From a table, so that all devices agree on the limits of the buckets.
    farthest = self.relative_attention_max_distance
    table = _bucket(
      np.arange(-farthest, farthest + 1),
      self.relative_attention_num_buckets,
      farthest,
      self.bidirectional,
    )
    if isinstance(distances, np.ndarray):
      return table[np.clip(distances, -farthest, farthest) + farthest]
    index = jnp.clip(distances, -farthest, farthest) + farthest
    return jnp.asarray(table)[index]


def or_indices(positions: jax.Array | None, x: jax.Array) -> jax.Array:
  """Returns `positions`, or 0..T-1 if they are None, for `x` [B, T, ...]."""
  return jnp.arange(x.shape[1])[None] if positions is None else positions


def by_source(logits: jax.Array, sources: int) -> jax.Array:
  """Converts logits by distance to logits by source; returns [..., T, S].

  Args:
    logits: [..., T, T + S]; the last dimension is in the order of distances,
      from that of the last target and the first source to that of the first
      target and the last source, and ends with an element that is ignored.
    sources: S.
  """
  *batch, targets, width = logits.shape
  width -= 1
  # Flattening and reshaping to rows that are shorter by one element shifts each
  # target's row by one more than the row before.
  logits = logits.reshape(*batch, -1)[..., : targets * width]
  logits = logits.reshape(*batch, targets, width)
  return logits[..., targets - 1 : targets - 1 + sources]


def _bucket(
  distance: np.ndarray, buckets: int, farthest: int, bidirectional: bool
) -> np.ndarray:
  """Returns the bucket of each distance, source minus target."""
  first = 0
  if bidirectional:
    buckets //= 2
    first = np.where(distance > 0, buckets, 0)
    distance = np.abs(distance)
  else:
    distance = np.maximum(-distance, 0)
  exact = buckets // 2
  growth = np.log(np.maximum(distance, 1) / exact) / np.log(farthest / exact)
  shared = exact + (growth * (buckets - exact)).astype(int)
  bucket = np.where(distance < exact, distance, np.minimum(shared, buckets - 1))
  return first + bucket
