"""A learned bias of attention for each distance, as in T5.

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
  """Adds to each logit a weight of its head and of the source's distance.

  Small distances have a weight each; larger ones share, in buckets that grow
  geometrically.

  Attributes:
    num_heads: N.
    use_length_as_position: whether a position is the index in the sequence
      also where positions are given, as those of packed examples are. Within
      an example the distances are the same, and the bias has no batch
      dimension then.
    relative_attention_num_buckets: X.
    relative_attention_max_distance: sources at least so far away share the
      last bucket.
    bidirectional: whether later sources have half of the buckets; else all of
      them share the bucket of distance 0.
    use_xavier_init: whether weights start as `WeightInit.Xavier()`, else
      Gaussian with deviation (N * X)^-0.5.
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
        f' above {exact}, up to which each has a bucket of its own'
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
    # All targets have the same bias at the same distance: [N, T+S-1] numbers
    # are the whole of it. Rows one longer than that, laid end to end and cut
    # anew without the extra one, shift by one from each target to the next;
    # the gradient is a sum then and no scatter.
    distances = np.arange(-targets + 1, sources)
    bias = self.theta.wrb[:, self._buckets(distances)]
    width = len(distances)
    bias = jnp.pad(bias, ((0, 0), (0, 1)))[:, None]
    bias = jnp.broadcast_to(bias, (self.num_heads, targets, width + 1))
    bias = bias.reshape(self.num_heads, -1)[:, : targets * width]
    bias = bias.reshape(self.num_heads, targets, width)
    return bias[None, :, :, targets - 1 :]

  def at(
    self, query_positions: jax.Array, key_positions: jax.Array
  ) -> jax.Array:
    """Returns the bias between any positions.

    Args:
      query_positions: [B, T] or [1, T].
      key_positions: [B, S] or [1, S].

    Returns:
      [B, N, T, S] or, if both had 1 for B, [1, N, T, S].
    """
    distances = key_positions[:, None, :] - query_positions[:, :, None]
    bias = jnp.take(self.theta.wrb, self._buckets(distances), axis=1)
    return jnp.moveaxis(bias, 0, 1)

  def extend_step(
    self, seq_length: int, time_step: jax.Array, steps: int = 1
  ) -> jax.Array:
    """Returns the bias [1, N, L, S] of new positions while decoding.

    Args:
      seq_length: S, the positions that are decoded in all.
      time_step: [], the index of the first of the L new positions.
      steps: L.
    """
    query_positions = time_step + jnp.arange(steps)[None]
    return self.at(query_positions, jnp.arange(seq_length)[None])

  def _buckets(self, distances):
    """Returns the buckets of distances, source minus target, of any shape."""
    # From a table, so that every device agrees on where a bucket ends.
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
