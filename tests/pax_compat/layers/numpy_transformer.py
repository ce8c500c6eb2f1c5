"""A Transformer layer in numpy, after the papers, to hold ours against.

Weights are nested dicts with the names of the variables. Shapes: B batch, T
time, S source time, D model dims, N heads, H dims of a head.
"""

import jax
import numpy as np

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS


def random_weights(layer, *args, seed=1, **kwargs):
  """Returns random values for all weights of a layer, biases included."""
  first = jax.eval_shape(
    lambda: layer.init({PARAMS: jax.random.key(0)}, *args, **kwargs)
  )
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.normal(scale=0.5, size=x.shape).astype(np.float32),
    base_layer.unbox(first)[PARAMS],
  )


def norm(x, weights):
  """Layer normalisation, with a scale of 1 + the weight."""
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return x * (1 + weights['scale']) + weights['bias']


def dense(x, weights):
  """A matrix and a bias."""
  return x @ weights['linear']['w'] + weights['bias']['b']


def attention(queries, sources, weights, visible):
  """Multi-headed attention.

  Args:
    queries: [B, T, D].
    sources: [B, S, D].
    weights: with a learned scale for each dim of a head.
    visible: broadcasts to [B, N, T, S].

  Returns:
    [B, T, D].
  """

  def heads(x, name):
    w = weights[name]
    return np.einsum('btd,dnh->bnth', x, w['w']) + w['b'][:, None]

  scale = np.log2(1 + np.exp(weights['per_dim_scale']['per_dim_scale']))
  query = heads(queries, 'query') * scale / np.sqrt(scale.size)
  logits = query @ heads(sources, 'key').swapaxes(-1, -2)
  logits = np.where(visible, logits, -np.inf)
  probs = np.exp(logits - logits.max(-1, keepdims=True))
  probs /= probs.sum(-1, keepdims=True)
  encoded = probs @ heads(sources, 'value')
  post = weights['post']
  return np.einsum('bnth,dnh->btd', encoded, post['w']) + post['b']


def residual(x, compute, weights, policy, kind=''):
  """A residual around `compute`, normalised according to the policy.

  Args:
    x: [B, T, D].
    compute: maps [B, T, D] to the same.
    weights: with those of the norms.
    policy: 'pre', 'post', 'primer_hybrid' or 'post_skip'.
    kind: begins the names of the norms.
  """
  own = weights.get(f'{kind}layer_norm')
  if policy == 'pre':
    return x + compute(norm(x, own))
  if policy == 'post':
    return x + norm(compute(x), own)
  if policy == 'post_skip':
    return norm(x + compute(x), own)
  before, after = (weights[f'{p}_{kind}layer_norm'] for p in ('pre', 'post'))
  return x + norm(compute(norm(x, before)), after)


def feed_forward(
  x, weights, policy='pre', activation=lambda x: np.maximum(x, 0)
):
  """The feed-forward block; gated if it has a gate."""

  def compute(x):
    inner = dense(x, weights['ffn_layer1'])
    if 'ffn_layer1_gate' in weights:
      inner = activation(dense(x, weights['ffn_layer1_gate'])) * inner
    else:
      inner = activation(inner)
    return dense(inner, weights['ffn_layer2'])

  return residual(x, compute, weights, policy)


def layer(x, weights, visible, policy='pre', cross=None, cross_visible=True):
  """A whole layer; it attends to `cross` [B, S, D] too, if that is given."""
  x = residual(
    x,
    lambda q: attention(q, q, weights['self_attention'], visible),
    weights,
    policy,
  )
  if cross is not None:
    w = weights['cross_attention']
    x = residual(
      x,
      lambda q: attention(q, cross, w, cross_visible),
      weights,
      policy,
      kind='cross_',
    )
  return feed_forward(x, weights['ff_layer'], policy)
