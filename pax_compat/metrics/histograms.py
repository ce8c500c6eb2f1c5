"""Histograms: what is left of a large array when all but its spread is gone."""

import flax.struct
import jax
import jax.numpy as jnp

NUM_BUCKETS = 64


class Histogram(flax.struct.PyTreeNode):
  """How the finite values of an array are spread.

  Attributes:
    counts: [NUM_BUCKETS], int32, values in each bucket; all are equally wide.
    low: [], the smallest value, where the first bucket begins.
    high: [], the largest value, where the last bucket ends.
    total: [], the sum of the values.
    total_squares: [], the sum of their squares.
  """

  counts: jax.Array
  low: jax.Array
  high: jax.Array
  total: jax.Array
  total_squares: jax.Array


def histogram(x: jax.Array) -> Histogram:
  """Returns the histogram of an array of any shape; NaN and infinity are out.

  Without any finite value all counts are 0, and so is the rest.
  """
  x = jnp.ravel(x).astype(jnp.float32)
  finite = jnp.isfinite(x)
  some = jnp.any(finite)
  low = jnp.where(some, jnp.min(x, where=finite, initial=jnp.inf), 0.0)
  high = jnp.where(some, jnp.max(x, where=finite, initial=-jnp.inf), 0.0)
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
