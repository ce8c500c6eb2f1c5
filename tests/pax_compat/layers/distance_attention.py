"""Attention that goes by distance in numpy, for tests.

Shapes: B batch, T time, D model dims, N heads, H dims of a head, R dims of the
distances' embeddings.
"""

import math

import numpy as np

from tests.pax_compat.layers import naive_attention


def sinusoid(position, dims, longest=10_000):
  """Returns the embedding [R] of one position: sines, then cosines."""
  half = dims // 2
  angles = [position * longest ** (-i / max(1, half - 1)) for i in range(half)]
  return np.array([*map(math.sin, angles), *map(math.cos, angles)])


def layer(weights, x, visible, *, dims=0, skip_term_b=False):
  """Returns what attention of a sequence to itself computes, [B, T, D].

  Args:
    weights: of the layer, whose queries are scaled by H^-0.5.
    x: [B, T, D].
    visible: broadcasts to [B, N, T, T], which target sees which source.
    dims: R, if logits depend on distances.
    skip_term_b: whether queries have no part in that.
  """
  query, key, value = (
    naive_attention.project(weights[name], np.asarray(x, np.float64))
    for name in ('query', 'key', 'value')
  )
  batch, length, heads, per_head = query.shape
  query = query * per_head**-0.5
  shape = (batch, heads, length, length)
  bias = np.zeros(shape)
  u, v = (weights.get(name, np.zeros([heads, per_head])) for name in 'uv')
  if dims:
    projection = weights['pos_proj']['w'].astype(np.float64)
    for t, s in np.ndindex(length, length):
      by_head = np.einsum('r,rnh->nh', sinusoid(t - s, dims), projection)
      content = v[None] if skip_term_b else query[:, t] + v
      bias[:, :, t, s] = np.sum(content * by_head, axis=-1)
  encoded = naive_attention.attend(
    query + u, key, value, np.broadcast_to(visible, shape), bias=bias
  )
  post = weights['post']['w'].astype(np.float64)
  output = np.einsum('btnh,dnh->btd', encoded, post)
  return output + weights['post'].get('b', 0)


def window(length, left, right):
  """Returns the mask [1, 1, T, T] of a window around each position."""
  visible = np.zeros([length, length], bool)
  for t, s in np.ndindex(length, length):
    visible[t, s] = t - left < s <= t + right
  return visible[None, None]
