"""Attention in numpy, one target and one head at a time, for tests.

Shapes: B batch, T target time, S source time, D model dims, N heads, K heads of
keys and values, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS


def random(*shape, seed=0):
  """Returns normal float32 numbers."""
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights_of(config, dims, seed=0):
  """Returns weights of an attention layer, all of them random.

  Args:
    config: of the layer.
    dims: of queries, keys and values.
    seed: of the first weight.
  """
  x = jnp.zeros((1, 2, dims))
  layer = config.Instantiate()
  variables = jax.eval_shape(
    lambda x: layer.init({PARAMS: jax.random.key(0)}, x, x, x), x
  )
  leaves, tree = jax.tree.flatten(base_layer.unbox(variables)[PARAMS])
  return tree.unflatten(
    random(*leaf.shape, seed=seed + i) for i, leaf in enumerate(leaves)
  )


def abstract_mesh(**axes):
  """Returns a mesh without devices, of axes' names and sizes."""
  types = (jax.sharding.AxisType.Auto,) * len(axes)
  return jax.sharding.AbstractMesh(
    tuple(axes.values()), tuple(axes), axis_types=types
  )


def splits(function, mesh, *args):
  """Returns how a function splits arrays over a mesh, in order.

  Args:
    function: of arrays.
    mesh: an abstract mesh.
    *args: of the function.

  Returns:
    Pairs of an array's shape and of the mesh axes of its dimensions.
  """
  with jax.sharding.use_abstract_mesh(mesh):
    jaxpr = jax.make_jaxpr(function)(*args)
  return [
    (eqn.outvars[0].aval.shape, tuple(eqn.params['sharding'].spec))
    for eqn in jaxpr.eqns
    if eqn.primitive.name == 'sharding_constraint'
  ]


def visible_of(mask, causal, shape):
  """Returns which source each target of each head sees.

  Args:
    mask: broadcasts to [B, N, T, S], or None.
    causal: whether later sources are hidden.
    shape: B, N, T and S.

  Returns:
    [B, N, T, S], boolean.
  """
  visible = np.ones(shape, bool)
  if mask is not None:
    visible &= np.asarray(mask)
  for t, s in np.ndindex(*shape[2:]):
    if causal and s > t:
      visible[:, :, t, s] = False
  return visible


def attend(
  query, key, value, visible, *, bias=None, cap=0.0, extra=None, factor=1.0
):
  """Returns what each target and head attends to, [B, T, N, H].

  That is zero where it sees nothing.

  Args:
    query: [B, T, N, H], scaled.
    key: [B, S, K, H].
    value: [B, S, K, H].
    visible: [B, N, T, S].
    bias: broadcasts to [B, N, T, S], added to the logits.
    cap: of the logits, or 0.
    extra: the logit of one more source, of value zero.
    factor: of the logits, the bias included.
  """
  query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
  batch, targets, heads, _ = query.shape
  group = heads // key.shape[2]
  if bias is None:
    bias = 0.0
  bias = np.broadcast_to(np.asarray(bias, np.float64), visible.shape)
  out = np.zeros(query.shape)
  for b, t, n in np.ndindex(batch, targets, heads):
    logits = key[b, :, n // group] @ query[b, t, n] + bias[b, n, t]
    logits = logits * factor
    if cap:
      logits = cap * np.tanh(logits / cap)
    seen = np.flatnonzero(visible[b, n, t])
    if not seen.size:
      continue
    logits = logits[seen]
    highest = max([*logits, *([] if extra is None else [extra])])
    weights = np.exp(logits - highest)
    total = weights.sum() + (0 if extra is None else np.exp(extra - highest))
    for weight, s in zip(weights, seen, strict=True):
      out[b, t, n] += weight / total * value[b, s, n // group]
  return out


def rotate(x, positions, shortest=1, longest=10_000):
  """Returns heads rotated by position, as pairs of numbers on a plane.

  Args:
    x: [B, T, N, H].
    positions: broadcasts to [B, T].
    shortest: the first timescale.
    longest: the timescale that would come after the last.
  """
  half = x.shape[-1] // 2
  points = np.asarray(x[..., :half], np.complex128) + 1j * x[..., half:]
  positions = np.broadcast_to(positions, x.shape[:2])
  for i in range(half):
    timescale = shortest * (longest / shortest) ** (i / half)
    points[..., i] *= np.exp(1j * positions / timescale)[:, :, None]
  return np.concatenate([points.real, points.imag], axis=-1)


def bucket(distance, buckets=32, farthest=128, bidirectional=False):
  """Returns T5's bucket of a distance, source minus target."""
  first = 0
  if bidirectional:
    buckets //= 2
    first = buckets if distance > 0 else 0
    distance = abs(distance)
  else:
    distance = max(0, -distance)
  exact = buckets // 2
  if distance < exact:
    return first + distance
  # The last bucket ends at `farthest`; ends of buckets grow geometrically.
  share = np.log(distance / exact) / np.log(farthest / exact)
  return first + min(buckets - 1, exact + int(share * (buckets - exact)))


def relative_bias(weight, query_positions, key_positions, **fields):
  """Returns T5's bias [B, N, T, S].

  Args:
    weight: [N, buckets].
    query_positions: [B, T].
    key_positions: [B, S].
    **fields: of `bucket`.
  """
  shape = (*query_positions.shape, key_positions.shape[1])
  bias = np.zeros((shape[0], len(weight), *shape[1:]))
  for b, t, s in np.ndindex(*shape):
    distance = int(key_positions[b, s]) - int(query_positions[b, t])
    bias[b, :, t, s] = weight[:, bucket(distance, weight.shape[1], **fields)]
  return bias


def project(weights, x):
  """Returns [B, T, D] projected to [B, T, N, H], or by [D, H] to one head."""
  w = np.asarray(weights['w'], np.float64)
  if w.ndim == 2:
    w = w[:, None]
  heads = np.stack([x @ w[:, n] for n in range(w.shape[1])], axis=2)
  return heads + weights.get('b', 0.0)


def convolve(weights, x, positions):
  """Returns heads [B, T, N, H] convolved along time within their examples."""
  out = np.zeros(x.shape)
  for b, t in np.ndindex(*x.shape[:2]):
    for i in range(len(weights)):
      if positions[b, t] >= i and t >= i:
        out[b, t] += x[b, t - i] * weights[f'dconv_{i}']
  return out


def layer(
  weights,
  query,
  key,
  value,
  *,
  mask=None,
  causal=False,
  positions=None,
  **fields,
):
  """Returns what an attention layer computes, [B, T, D].

  Args:
    weights: of the layer.
    query: [B, T, D].
    key: [B, S, D].
    value: [B, S, D].
    mask: broadcasts to [B, N, T, S].
    causal: whether later sources are hidden.
    positions: of queries and keys, [B, T] and [B, S]; None takes indices.
    **fields: of the layer, and `farthest` of its relative bias.
  """
  if positions is None:
    positions = [
      np.tile(np.arange(x.shape[1]), (len(x), 1)) for x in (query, key)
    ]
  q, k, v = (
    project(weights[name], np.asarray(x, np.float64))
    for name, x in (('query', query), ('key', key), ('value', value))
  )
  if fields.get('dconv_qkv'):
    q = convolve(weights['dconv_q'], q, positions[0])
    k = convolve(weights['dconv_k'], k, positions[1])
    v = convolve(weights['dconv_v'], v, positions[1])
  if fields.get('use_rotary_position_emb'):
    q, k = rotate(q, positions[0]), rotate(k, positions[1])
  scale = q.shape[-1] ** -0.5
  if 'per_dim_scale' in weights:
    learned = weights['per_dim_scale']['per_dim_scale']
    scale = scale * np.log1p(np.exp(np.float64(learned))) / np.log(2)
  if not fields.get('internal_enable_query_scale', True):
    scale = 1.0
  bias = None
  if 'relative_bias' in weights:
    bias = relative_bias(
      weights['relative_bias']['wrb'],
      *positions,
      farthest=fields.get('farthest', 128),
    )
  batch, targets, heads, _ = q.shape
  visible = visible_of(mask, causal, (batch, heads, targets, k.shape[1]))
  by_root = fields.get('scale_logits_by_head_dims')
  encoded = attend(
    q * scale,
    k,
    v,
    visible,
    bias=bias,
    cap=fields.get('atten_logit_cap', 0.0),
    extra=fields.get('attention_extra_logit'),
    factor=q.shape[-1] ** -0.5 if by_root else 1.0,
  )
  post = weights['post']['w'].astype(np.float64)
  return np.einsum('btnh,dnh->btd', encoded, post) + weights['post'].get('b', 0)
