"""Attention against a loop in numpy.

Shapes: B batch, T target time, S source time, D model dims, N heads, H dims of
a head.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import attentions, stochastics

B, T, D, N, H = 2, 5, 6, 2, 4


def _random(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _config(**fields):
  return attentions.DotProductAttention.config(
    input_dim=D, hidden_dim=N * H, num_heads=N, **fields
  )


def _weights(per_dim_scale=True):
  weights = {
    name: {
      'w': _random(D, N, H, seed=i),
      'b': _random(*((D,) if name == 'post' else (N, H)), seed=10 + i),
    }
    for i, name in enumerate(('query', 'key', 'value', 'post'))
  }
  if per_dim_scale:
    weights['per_dim_scale'] = {'per_dim_scale': _random(H, seed=20)}
  return weights


def _naive(weights, query, key, value, *, visible, cap=0.0):
  """Attention one target and one head at a time.

  Args:
    weights: of the layer.
    query: [B, T, D].
    key: [B, S, D].
    value: [B, S, D].
    visible: (b, t, s) -> whether the target sees the source.
    cap: of the logits.
  """
  weights = jax.tree.map(lambda w: np.asarray(w, np.float64), weights)

  def project(name, x, n):
    return x @ weights[name]['w'][:, n] + weights[name]['b'][n]

  scale = np.full(H, H**-0.5)
  if 'per_dim_scale' in weights:
    learned = weights['per_dim_scale']['per_dim_scale']
    scale = scale * np.log1p(np.exp(learned)) / np.log(2)
  out = np.tile(weights['post']['b'], (*query.shape[:2], 1))
  for b, t, n in np.ndindex(*query.shape[:2], N):
    q = project('query', query[b, t], n) * scale
    logits = np.array([q @ project('key', k, n) for k in key[b]])
    if cap:
      logits = cap * np.tanh(logits / cap)
    seen = np.array([visible(b, t, s) for s in range(len(logits))])
    probs = np.exp(logits - logits[seen].max()) * seen
    probs /= probs.sum()
    context = sum(
      p * project('value', v, n) for p, v in zip(probs, value[b], strict=True)
    )
    out[b, t] += weights['post']['w'][:, n] @ context
  return out


PADDINGS = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], np.float32)


def _compute_as_on(backend, monkeypatch):
  """Lets layers choose how to attend as they do on that backend."""
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)


backends = pytest.mark.parametrize('backend', ['cpu', 'gpu'])


@backends
@pytest.mark.parametrize('cap', [0.0, 2.0])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('per_dim_scale', [False, True])
def test_against_a_loop(causal, per_dim_scale, cap, backend, monkeypatch):
  _compute_as_on(backend, monkeypatch)
  weights = _weights(per_dim_scale)
  x = _random(B, T, D, seed=30)
  layer = _config(
    internal_enable_per_dim_scale=per_dim_scale, atten_logit_cap=cap
  ).Instantiate()
  mask = attentions.padding_mask(PADDINGS)
  y = layer.apply({PARAMS: weights}, x, x, x, mask=mask, causal=causal)
  want = _naive(
    weights,
    *(x, x, x),
    visible=lambda b, t, s: not PADDINGS[b, s] and (s <= t or not causal),
    cap=cap,
  )
  np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-5)


@backends
@pytest.mark.parametrize('cap', [0.0, 2.0])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('targets', 'sources'), [(3, 5), (5, 3)])
def test_sources_of_another_length(
  targets, sources, causal, cap, backend, monkeypatch
):
  _compute_as_on(backend, monkeypatch)
  weights = _weights()
  query = _random(B, targets, D, seed=1)
  key, value = (_random(B, sources, D, seed=seed) for seed in (2, 3))
  layer = _config(atten_logit_cap=cap).Instantiate()
  y = layer.apply({PARAMS: weights}, query, key, value, causal=causal)
  want = _naive(
    *(weights, query, key, value),
    visible=lambda b, t, s: s <= t or not causal,
    cap=cap,
  )
  np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-5)


def test_heads_share_the_hidden_dim_evenly():
  x = _random(B, T, D)
  layer = _config().set(hidden_dim=7).Instantiate()
  with pytest.raises(
    errors.UserError, match='hidden_dim is 7; .*multiple of num_heads, 2'
  ):
    layer.init({PARAMS: jax.random.key(0)}, x, x, x)


LONG = 150  # positions, more than one block of targets


@pytest.mark.parametrize('sources', [LONG, LONG - 70, LONG + 70])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('masked', ['nothing', 'sources', 'pairs'])
def test_attention_by_blocks(masked, causal, sources):
  """Against one softmax over all sources, with the gradients."""
  query = _random(B, LONG, N, H, seed=1)
  key, value = (_random(B, sources, N, H, seed=seed) for seed in (2, 3))
  mask = None
  if masked != 'nothing':
    rows = 1 if masked == 'sources' else LONG
    mask = _random(B, 1, rows, sources, seed=4) > 0
    mask[..., 0] = True  # Every target sees something.

  def value_and_grads(attend):
    return jax.value_and_grad(
      lambda *heads: jnp.sum(attend(*heads, mask=mask) ** 2), argnums=(0, 1, 2)
    )(query, key, value)

  got = value_and_grads(functools.partial(attentions.attend, causal=causal))
  want = value_and_grads(
    functools.partial(jax.nn.dot_product_attention, is_causal=causal, scale=1.0)
  )
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5),
    *(got, want),
  )


class _DropsNothing(stochastics.Dropout):
  """Dropout that counts itself as on and drops nothing."""

  def __call__(self, inputs):
    return inputs


@pytest.mark.parametrize('causal', [False, True])
def test_both_ways_of_computing_agree(causal, monkeypatch):
  _compute_as_on('gpu', monkeypatch)
  weights = _weights()
  x = _random(B, T, D)
  # The second example is all padding.
  paddings = np.array([[0, 0, 0, 1, 1], [1] * T], np.float32)
  mask = attentions.padding_mask(paddings)
  by_parts = _config(
    atten_dropout_prob=0.5, dropout_tpl=_DropsNothing.config()
  ).Instantiate()

  def run(layer, x):
    return layer.apply({PARAMS: weights}, x, x, x, mask=mask, causal=causal)

  fused = run(_config().Instantiate(), x)
  np.testing.assert_allclose(run(by_parts, x), fused, rtol=2e-5, atol=2e-5)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(run(by_parts, x), fused)


@backends
@pytest.mark.parametrize('cap', [0.0, 2.0])
def test_rows_that_see_nothing_are_finite_with_their_gradients(
  cap, backend, monkeypatch
):
  _compute_as_on(backend, monkeypatch)
  layer = _config(atten_logit_cap=cap).Instantiate()
  mask = attentions.padding_mask(np.ones([B, T]))

  def loss(weights, x):
    y = layer.apply({PARAMS: weights}, x, x, x, mask=mask, causal=True)
    return jnp.sum(y**2)

  value, grads = jax.value_and_grad(loss, argnums=(0, 1))(
    _weights(), _random(B, T, D)
  )
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_dropped_weights_are_zero_and_the_others_scaled_up():
  # One source of weight 1, the identity as projections: the output is the
  # value times 0 or 1 / keep_prob, for each target and head.
  layer = attentions.DotProductAttention.config(
    input_dim=1,
    hidden_dim=1,
    num_heads=1,
    use_bias=False,
    atten_dropout_prob=0.25,
    internal_enable_per_dim_scale=False,
  ).Instantiate()
  weights = {n: {'w': np.ones([1, 1, 1])} for n in ('query', 'key', 'value')}
  weights['post'] = {'w': np.ones([1, 1, 1])}
  y = layer.apply(
    {PARAMS: weights},
    np.ones([50, 40, 1], np.float32),
    *(np.full([50, 1, 1], 3, np.float32),) * 2,
    rngs={RANDOM: jax.random.key(0)},
  )
  dropped = np.asarray(y) == 0
  np.testing.assert_allclose(y[~dropped], 4.0, rtol=1e-6)
  # The share of 2000 draws has a standard error of 1%.
  assert abs(dropped.mean() - 0.25) < 0.05


def test_the_mask_of_paddings():
  mask = attentions.padding_mask(jnp.array([[0.0, 1.0]]))
  assert mask.shape == (1, 1, 1, 2)
  np.testing.assert_array_equal(mask[0, 0, 0], [True, False])


def test_queries_start_scaled_by_the_root_of_the_dims():
  layer = attentions.PerDimScale.config(dim=16).Instantiate()
  x = _random(2, 16)
  y, _ = layer.init_with_output({PARAMS: jax.random.key(0)}, x)
  np.testing.assert_allclose(y, x / 4, rtol=1e-6)
