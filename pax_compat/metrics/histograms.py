"""Histograms of large arrays, computed on the accelerator."""

import flax.struct
import jax
import jax.numpy as jnp

NUM_BUCKETS = 64


class Histogram(flax.struct.PyTreeNode):
  """The distribution of an array's finite values.

  Attributes:
    counts: [NUM_BUCKETS], int32, values in each of the equally wide buckets.
    low: [], the smallest value, the lower limit of the first bucket.
    high: [], the largest value, the upper limit of the last bucket.
    total: [], the sum of the values.
    total_squares: [], the sum of their squares.
  """

  counts: jax.Array
  low: jax.Array
  high: jax.Array
  total: jax.Array
  total_squares: jax.Array


def histogram(x: jax.Array) -> Histogram:
  """Returns the histogram of an array of any shape, without NaN and infinity.

  If no value is finite, all fields are 0.
  """
  x = jnp.ravel(x).astype(jnp.float32)
  finite = jnp.isfinite(x)
  has_any = jnp.any(finite)
  low = jnp.where(has_any, jnp.min(x, where=finite, initial=jnp.inf), 0.0)
  high = jnp.where(has_any, jnp.max(x, where=finite, initial=-jnp.inf), 0.0)
  x = jnp.where(finite, x, 0.0)
  width = jnp.where(high > low, high - low, 1.0)
  bucket = jnp.floor((x - low) / width * NUM_BUCKETS).astype(jnp.int32)
  bucket = jnp.clip(bucket, 0, NUM_BUCKETS - 1)
  counts = jnp.zeros(NUM_BUCKETS, jnp.int32)
  counts = counts.at[bucket].add(finite.astype(jnp.int32))
  return Histogram(
    counts=counts,
    low=low,
    high=high,
    total=jnp.sum(x),
    total_squares=jnp.sum(jnp.square(x)),
  )
